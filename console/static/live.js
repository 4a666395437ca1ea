// Parts of a page that change by themselves, without moving what somebody reads: what is the same stays the same
// element, with its focus and its selection.

const MOST_HELD_MS = 5000;

const keyOf = (node) => node.dataset?.key || node.id || "";

const alike = (one, other) =>
  one && one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

/** Make one element what the other is. */
function become(old, wanted) {
  if (old.isEqualNode(wanted)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = wanted.data;
    return;
  }
  // An unfolded part stays so.
  const kept = old.nodeName === "DETAILS" ? "open" : "";
  for (const { name } of [...old.attributes]) if (name !== kept && !wanted.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  within(old, wanted);
}

/** Give one node what is within the other. Rows have keys, so that each is found again when their order changes. */
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

/** Whether somebody is about to do something with it: has marked text in it, or points at something to press. */
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
  // Whoever has scrolled reads something: it stays where it is.
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

/** The new content of an element, when it does not disturb. */
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

/** Parts by server-sent events, while the page is seen: a browser has few connections for one server. */
export function listen(element) {
  let source = null;
  const end = () => {
    source?.close();
    source = null;
  };
  const begin = () => {
    if (source || document.hidden) return;
    source = new EventSource(element.dataset.live);
    // A browser comes back by itself when a connection breaks, and not when it was refused: the console may be starting.
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED) return;
      end();
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
