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

/** The session, before a form is sent: a failed navigation loses the input. Null without an answer. */
export async function session() {
  try {
    const answer = await fetch("/session", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

function showMessage(form, words) {
  form.querySelector(":scope > .unsent")?.remove();
  if (words) form.insertAdjacentHTML("beforeend", `<p class="refusal unsent" role="alert">${words}</p>`);
}

// A form is sent once, also after a second click. The session may be a later one of the same user.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent === "may") {
    form.dataset.sent = "yes";
    return;
  }
  event.preventDefault();
  if (form.dataset.sent) return;
  form.dataset.sent = "asks";
  form.classList.add("busy");
  showMessage(form, "");
  const now = await session();
  if (now?.user === document.body.dataset.user) {
    form.elements.token.value = now.token;
    form.dataset.sent = "may";
    form.requestSubmit(event.submitter);
    return;
  }
  delete form.dataset.sent;
  form.classList.remove("busy");
  const why = now ? 'You are signed out: <a href="/sign-in" target="_blank">sign in</a> in another window.' : "Can't reach the console.";
  showMessage(form, `${why} Your input is kept, try again.`);
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.classList.remove("busy");
  }
});
