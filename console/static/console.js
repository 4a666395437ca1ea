// What the console adds to pages that work without it.

import { listen } from "./live.js";
import "./topics.js";
import "./lists.js";

for (const element of document.querySelectorAll("[data-live]")) listen(element);

// On a narrow screen the navigation is wider than its window.
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
    // Only pages that came over TLS, or from this machine, may: others mark it.
    const before = button.previousElementSibling;
    if (before) getSelection().selectAllChildren(before);
    return;
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
});

/** Before a form is sent the console is asked whether it is there: else what was typed would go with the page. */
async function answers() {
  try {
    return (await fetch("/health/live", { cache: "no-store", signal: AbortSignal.timeout(10000) })).ok;
  } catch {
    return false;
  }
}

function tell(form, words) {
  form.querySelector(":scope > .unsent")?.remove();
  if (words) form.insertAdjacentHTML("beforeend", `<p class="refusal unsent" role="alert">${words}</p>`);
}

// A form that takes a while is not sent twice.
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
  tell(form, "");
  if (await answers()) {
    form.dataset.sent = "may";
    form.requestSubmit(event.submitter);
    return;
  }
  delete form.dataset.sent;
  form.classList.remove("busy");
  tell(form, "Can't reach the console. Your input is kept, try again.");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.classList.remove("busy");
  }
});
