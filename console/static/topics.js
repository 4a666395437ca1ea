// The screen Topics: nodes unfold in place, the selected topic appears beside the tree, arrow keys move through it, and
// nodes can be dragged. Without scripts each of these is a page.

const left = document.getElementById("left");
const detail = document.getElementById("detail");

/** A part of a page: HTML rendered and escaped by the server. */
async function part(url) {
  const answer = await fetch(url, { headers: { "x-fragment": "1" } });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.text();
}

/** Fetch a part and pass it to `put`; after a failure navigate to the page. Neither, if it is not `current` any more. */
async function load(url, page, put, current = () => true) {
  try {
    const html = await part(url);
    if (current()) put(html);
  } catch {
    if (current()) location.assign(page);
  }
}

const nodeOf = (element) => element.closest("li[data-path]");
const link = (item) => item.querySelector(":scope > .node > .name");
const toggle = (item) => item.querySelector(":scope > .node > a.toggle");
const below = (item) => item.querySelector(":scope > ul");

function mark(item, open) {
  const it = toggle(item);
  it.classList.toggle("open", open);
  it.setAttribute("aria-expanded", open);
  it.setAttribute("aria-label", `${open ? "Fold" : "Unfold"} ${link(item).textContent}`);
}

async function unfold(item) {
  const it = toggle(item);
  if (!it || below(item)) return;
  mark(item, true);
  await load(`/topics/children?above=${encodeURIComponent(item.dataset.path)}`, it.href, (html) => {
    if (!below(item)) item.insertAdjacentHTML("beforeend", html);
  });
}

function fold(item) {
  below(item)?.remove();
  mark(item, false);
}

function select(path) {
  for (const old of left.querySelectorAll(".node.selected")) {
    old.classList.remove("selected");
    old.querySelector(".name").removeAttribute("aria-current");
  }
  const item = [...left.querySelectorAll("li[data-path]")].find((each) => each.dataset.path === path);
  if (!item) return null;
  item.querySelector(".node").classList.add("selected");
  link(item).setAttribute("aria-current", "true");
  return item;
}

// Whether a form of the selected topic has unstaged input.
let typed = false;
const leaves = () => !typed || confirm("Discard what you have typed in this form?");

let shown = 0;

async function show(url) {
  typed = false;
  const mine = ++shown;
  detail.inert = true; // the load would overwrite input
  await load(url, url, (html) => {
    detail.inert = false;
    detail.innerHTML = html;
    document.title = `${detail.querySelector("h1")?.firstChild.textContent.trim() || "Topics"} · Arborcast`;
    detail.querySelector("[autofocus]")?.focus();
  }, () => mine === shown);
}

function clicked(event) {
  if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const it = event.target.closest("a");
  if (!it) return;
  const item = nodeOf(it);
  if (it.matches(".toggle")) {
    event.preventDefault();
    if (below(item)) fold(item);
    else unfold(item);
  } else if (it.dataset.more) {
    event.preventDefault();
    load(it.dataset.more, it.href, (html) => {
      const more = it.closest("li");
      const list = document.createElement("template");
      list.innerHTML = html;
      // Without the link to the beginning: the list has it already.
      const items = [...list.content.querySelector("ul").children].filter((each) => !each.matches(".more:first-child"));
      more.replaceWith(...items);
      items[0]?.querySelector("a.name")?.focus();
    });
  } else if (it.matches(".name")) {
    event.preventDefault();
    if (!leaves()) return;
    history.pushState(null, "", it.href);
    select(item.dataset.path);
    unfold(item);
    show(it.href);
  }
}

/** Show the forms of the selected node in place; links to other nodes navigate. */
function chosen(event) {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const it = event.target.closest("a[href^='/topics?']");
  if (!it || new URLSearchParams(it.search).get("at") !== new URLSearchParams(location.search).get("at")) return;
  event.preventDefault();
  if (!leaves()) return;
  history.pushState(null, "", it.href);
  show(it.href);
}

function pressed(event) {
  const here = event.target.closest?.("a.name");
  if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...left.querySelectorAll("a.name")];
  const at = all.indexOf(here);
  const item = nodeOf(here);
  const goes = {
    ArrowDown: () => all[at + 1]?.focus(),
    ArrowUp: () => all[at - 1]?.focus(),
    Home: () => all[0].focus(),
    End: () => all[all.length - 1].focus(),
    ArrowRight: () => (toggle(item) && !below(item) ? unfold(item) : below(item) && all[at + 1].focus()),
    ArrowLeft: () => {
      const above = item.parentElement.closest("li[data-path]");
      if (below(item)) fold(item);
      else if (above) link(above).focus();
    },
  }[event.key];
  if (!goes) return;
  event.preventDefault();
  goes();
}

let pause = 0;
function searched(event) {
  clearTimeout(pause);
  const text = event.target.value.trim();
  pause = setTimeout(() => {
    const url = `?q=${encodeURIComponent(text)}`;
    load(`/topics/search${url}`, `/topics${url}`, (html) => {
      left.innerHTML = html;
      const here = new URL(location.href);
      if (text) here.searchParams.set("q", text);
      else here.searchParams.delete("q");
      history.replaceState(null, "", here);
    }, () => event.target.value.trim() === text);
  }, 200);
}

/** Dropping a node on another stages a move below it, as the form does. */
function dragging() {
  let dragged = "";
  const over = (event) => (dragged ? event.target.closest?.("#left .node") : null);
  const clear = () => left.querySelectorAll(".target").forEach((each) => each.classList.remove("target"));
  left.addEventListener("dragstart", (event) => {
    dragged = nodeOf(event.target)?.dataset.path ?? "";
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", dragged);
  });
  left.addEventListener("dragover", (event) => {
    clear();
    const node = over(event);
    const path = node && nodeOf(node).dataset.path;
    if (!path || path === dragged || path.startsWith(`${dragged}/`)) return;
    event.preventDefault();
    node.classList.add("target");
  });
  left.addEventListener("drop", (event) => {
    const node = over(event);
    if (!node) return;
    event.preventDefault();
    const form = document.getElementById("drag");
    form.elements.at.value = dragged;
    form.elements.target.value = `${nodeOf(node).dataset.path}/${dragged.match(/(?:\{[^}]*\})?[^/{}]*$/)[0]}`;
    form.requestSubmit();
  });
  left.addEventListener("dragend", () => {
    clear();
    dragged = "";
  });
}

if (left && detail) {
  left.addEventListener("click", clicked);
  left.addEventListener("keydown", pressed);
  detail.addEventListener("click", chosen);
  detail.addEventListener("input", (event) => {
    typed ||= event.target.form?.method === "post";
  });
  detail.addEventListener("submit", () => {
    typed = false;
  });
  window.addEventListener("beforeunload", (event) => {
    if (typed) event.preventDefault();
  });
  // Typing groups selects the option for groups.
  detail.addEventListener("input", (event) => {
    if (event.target.name === "groups") event.target.form.querySelector("[name='reach'][value='to:']").checked = true;
  });
  document.querySelector(".search input").addEventListener("input", searched);
  if (document.getElementById("drag")) dragging();
  window.addEventListener("popstate", () => {
    select(new URLSearchParams(location.search).get("at") ?? "");
    show(location.href);
  });
  left.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}
