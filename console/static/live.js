// Live parts of a page. Unchanged elements stay, with their focus and selection, and the visible rows keep their place.

const MOST_HELD_MS = 5000;

const keyOf = (node) => node.dataset?.key || node.id || "";

const alike = (one, other) =>
  one && one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

/** Make one element equal to another. */
function become(old, wanted) {
  if (old.isEqualNode(wanted)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = wanted.data;
    return;
  }
  // Open details stay open.
  const kept = old.nodeName === "DETAILS" ? "open" : "";
  for (const { name } of [...old.attributes]) if (name !== kept && !wanted.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  within(old, wanted);
}

/** Make the children of one node equal to those of another. Rows are matched by key, in any order. */
function within(old, wanted) {
  const keyed = new Map();
  for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    const key = keyOf(child);
    const known = key ? keyed.get(key) : at;
    keyed.delete(key);
    if (alike(known, child)) {
      if (known === at) at = at.nextSibling;
      else old.insertBefore(known, at);
      become(known, child);
    } else old.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** For how long an update must wait: text in the element is selected, or the pointer is on a link or button. */
function used(target) {
  if (target.dataset.hold && document.querySelector(target.dataset.hold)?.checked) return Infinity;
  const marked = getSelection();
  if (marked && !marked.isCollapsed && target.contains(marked.anchorNode)) return Infinity;
  return target.querySelector("a:hover, button:hover") ? MOST_HELD_MS : 0;
}

function put(target, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const focused = document.activeElement;
  const mine = focused !== target && target.contains(focused);
  // After scrolling the first visible row keeps its place.
  const rows = window.scrollY > 0 ? [...target.querySelectorAll("[data-key]")] : [];
  const read = rows.find((row) => row.getBoundingClientRect().top > 60);
  const before = read?.getBoundingClientRect().top;
  within(target, fresh.content);
  document.dispatchEvent(new Event("changed"));
  if (read?.isConnected) window.scrollBy({ top: read.getBoundingClientRect().top - before, behavior: "instant" });
  if (mine && document.activeElement !== focused) {
    (focused.isConnected ? focused : document.getElementById("main")).focus({ preventScroll: true });
  }
}

const held = new Map();

/** Replace the content of an element, as soon as the element is not in use. */
function change(id, html) {
  const target = document.getElementById(id);
  if (!target) return;
  const since = held.get(id)?.since ?? Date.now();
  if (Date.now() - since < used(target)) {
    clearTimeout(held.get(id)?.again);
    held.set(id, { since, again: setTimeout(() => change(id, html), 500) });
    return;
  }
  clearTimeout(held.get(id)?.again);
  held.delete(id);
  put(target, html);
}

/** Receive parts by server-sent events while the page is visible: a browser limits the connections to a server. */
export function listen(element) {
  let source = null;
  const end = () => {
    source?.close();
    source = null;
  };
  const begin = () => {
    if (source || document.hidden) return;
    source = new EventSource(element.dataset.live);
    // A browser reconnects after a broken connection, but not after a refused one: the console may be starting.
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED) return;
      end();
      // Until the header comes with the next stream.
      if (element === document.body) change("trouble", '<div class="banner"><p>This page is not updated. <a href="">Reload it</a></p></div>');
      setTimeout(begin, 5000);
    };
    source.onmessage = (event) => {
      const part = JSON.parse(event.data);
      change(part.id, part.html);
    };
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
  window.addEventListener("pagehide", end);
  window.addEventListener("pageshow", begin);
  begin();
}
