// Lists: keys, sorting, disabled buttons while Kafka is unavailable.

const KEYS = {
  "/ or Ctrl K": "find",
  "j, k": "next row, previous row",
  x: "select the row",
  Enter: "on a column's heading: sort",
  "up, down": "in the search field: choose a match",
  "?": "these keys",
};

const rows = () => [...document.querySelectorAll("main .table.lists tbody tr")].filter((row) => row.querySelector("a"));

function step(by) {
  const all = rows();
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))];
  next?.querySelector("a").focus();
}

function help() {
  let dialog = document.getElementById("keys");
  if (!dialog) {
    const list = Object.entries(KEYS).map(([key, what]) => `<dt><code>${key}</code></dt><dd>${what}</dd>`);
    document.body.insertAdjacentHTML(
      "beforeend",
      `<dialog id="keys" aria-label="Keys"><dl>${list.join("")}</dl><form method="dialog"><button>Close</button></form></dialog>`,
    );
    dialog = document.getElementById("keys");
  }
  dialog.showModal();
}

const find = () => (document.querySelector(".tree .search input") ?? document.querySelector(".find input"))?.focus();

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    document.querySelector(".find input")?.focus();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type='checkbox']), textarea, select, dialog")) return;
  if (event.key === "Enter" && event.target.matches("main .table.lists :is(th, input)")) {
    event.preventDefault(); // the first button of the form would be pressed
    if (event.target.matches("th")) event.target.click();
    return;
  }
  const goes = {
    "/": find,
    "?": help,
    j: () => step(1),
    k: () => step(-1),
    x: () => document.activeElement.closest("tr")?.querySelector("input[type='checkbox']")?.click(),
  }[event.key];
  if (!goes) return;
  event.preventDefault();
  goes();
});

// The search field: matches appear during typing.
const finder = document.querySelector(".find");
let wanted = 0;

const close = () => finder.querySelector(".matches")?.remove();

async function choose() {
  const text = finder.elements.q.value.trim();
  const mine = ++wanted;
  if (text.length < 2) return close();
  const answer = await fetch(`/find?q=${encodeURIComponent(text)}`, { headers: { "x-fragment": "1" } });
  const html = answer.ok ? await answer.text() : "";
  // There is a later text, or the field has lost the focus.
  if (mine !== wanted || !finder.contains(document.activeElement)) return;
  close();
  finder.insertAdjacentHTML("beforeend", `<div class="matches" role="region" aria-label="Matches" aria-live="polite">${html}</div>`);
}

if (finder) {
  let soon = 0;
  finder.addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(() => choose().catch(close), 150);
  });
  finder.addEventListener("focusout", (event) => {
    if (!finder.contains(event.relatedTarget)) close();
  });
  finder.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && finder.querySelector(".matches")) {
      event.preventDefault(); // the default clears the field
      close();
      finder.elements.q.focus();
    }
    if (!by) return;
    event.preventDefault();
    const all = [finder.elements.q, ...finder.querySelectorAll(".matches a")];
    const at = all.indexOf(document.activeElement) + by;
    all[(at + all.length) % all.length].focus();
  });
}

// The sort column of each table, by the table's position in the page.
const sorted = new Map();

const tables = () => [...document.querySelectorAll("main .table.lists")];

function value(row, column) {
  const text = row.cells[column]?.textContent.trim() ?? "";
  const number = Number.parseFloat(text.replaceAll(",", ""));
  // Times begin with a year and a dash.
  return Number.isNaN(number) || /^\d+-/.test(text) ? text : number;
}

function sort(table, { column, down }) {
  const body = table.tBodies[0];
  const heads = table.tHead.rows[0].cells;
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column]?.setAttribute("aria-sort", down ? "descending" : "ascending");
  const order = [...body.rows].sort((one, other) => {
    const [a, b] = [value(one, column), value(other, column)];
    const less = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return down ? -less : less;
  });
  if (order.some((row, at) => row !== body.rows[at])) body.append(...order);
}

const sorts = (head) => head?.closest("table").tBodies[0] && head.textContent.trim() && !head.querySelector(".hidden");

document.addEventListener("click", (event) => {
  const head = event.target.closest("main .table.lists thead th");
  if (!sorts(head)) return;
  const table = head.closest("table");
  const at = tables().indexOf(table);
  const known = sorted.get(at);
  sorted.set(at, { column: head.cellIndex, down: known?.column === head.cellIndex && !known.down });
  sort(table, sorted.get(at));
  if (table === listed()) remember(head, sorted.get(at).down);
});

// The sort order of the list is in the URL of the page, and of a saved view.
const saving = document.querySelector(".views input[name='url']");

const listed = () => (saving ? tables().find((table) => !table.closest("details")) : undefined);

function remember(head, down) {
  for (const base of [location.href, new URL(saving.value, location.href)]) {
    const url = new URL(base);
    url.searchParams.set("sort", (down ? "-" : "") + head.textContent.trim());
    if (base === location.href) history.replaceState(history.state, "", url);
    else saving.value = url.pathname + url.search;
  }
}

/** Sort the list as in the URL; once, when it has loaded. */
function recall() {
  const wanted = new URLSearchParams(location.search).get("sort");
  const table = listed();
  if (!wanted || !table?.tBodies[0] || sorted.has(tables().indexOf(table))) return;
  const down = wanted.startsWith("-");
  const column = [...table.tHead.rows[0].cells].findIndex((head) => head.textContent.trim() === wanted.slice(down ? 1 : 0));
  if (column < 0) return;
  sorted.set(tables().indexOf(table), { column, down });
  sort(table, { column, down });
}

/** Headings that sort can be reached with the keyboard. */
function reach() {
  for (const head of document.querySelectorAll("main .table.lists thead th")) if (sorts(head)) head.tabIndex = 0;
}

/** Disable buttons that write to Kafka while it is unavailable; topic changes can still be staged. */
function guard() {
  const away = document.querySelector("#trouble .banner") !== null;
  const forms = ["^='/subscriptions'", "^='/deliveries'", "='/topics/save'"].map((of) => `form[action${of}][method='post'] button`);
  for (const button of document.querySelectorAll(forms.join(", "))) {
    if (away && !button.disabled) {
      button.disabled = true;
      button.dataset.away = "";
    } else if (!away && "away" in button.dataset) {
      button.disabled = false;
      delete button.dataset.away;
    }
  }
}

document.addEventListener("changed", () => {
  recall();
  for (const [at, by] of sorted) {
    const table = tables()[at];
    if (table?.tBodies[0]) sort(table, by);
  }
  guard();
  reach();
});
guard();
recall();
reach();
