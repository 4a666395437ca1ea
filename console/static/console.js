// Enhancements of the console's pages, which also work without scripts.

import { listen } from "./live.js";
import "./topics.js";
import "./lists.js";

for (const element of document.querySelectorAll("[data-live]")) listen(element);

// On a narrow screen the current entry of the navigation may be out of view.
const here = document.querySelector(".top nav [aria-current]");
here?.scrollIntoView({ block: "nearest", inline: "nearest" });

document.documentElement.classList.add("script");

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard is for secure contexts (TLS or loopback) only: otherwise select the text.
    const before = button.previousElementSibling;
    if (before) getSelection().selectAllChildren(before);
    return;
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
});

/** Whether the console responds. It is checked before a form is sent, since a failed navigation loses the input. */
async function answers() {
  try {
    return (await fetch("/health/live", { cache: "no-store", signal: AbortSignal.timeout(10000) })).ok;
  } catch {
    return false;
  }
}

function showMessage(form, words) {
  form.querySelector(":scope > .unsent")?.remove();
  if (words) form.insertAdjacentHTML("beforeend", `<p class="refusal unsent" role="alert">${words}</p>`);
}

// A form is sent once, also after a second click.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post" || form.dataset.sent === "may") {
    if (form.dataset.sent === "yes") event.preventDefault();
    form.dataset.sent = "yes";
    form.classList.add("busy");
    return;
  }
  event.preventDefault();
  if (form.dataset.sent) return;
  form.dataset.sent = "asks";
  form.classList.add("busy");
  showMessage(form, "");
  if (await answers()) {
    form.dataset.sent = "may";
    form.requestSubmit(event.submitter);
    return;
  }
  delete form.dataset.sent;
  form.classList.remove("busy");
  showMessage(form, "Can't reach the console. Your input is kept, try again.");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.classList.remove("busy");
  }
});
