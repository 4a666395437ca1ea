// What the console adds to pages that work without it.

import { listen } from "./live.js";
import "./topics.js";

for (const element of document.querySelectorAll("[data-live]")) listen(element);

// On a narrow screen the navigation is wider than its window.
const here = document.querySelector(".top nav [aria-current]");
if (here) here.closest("nav").scrollLeft = here.offsetLeft - 16;

// A form that takes a while is not sent twice.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
  event.target.classList.add("busy");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.classList.remove("busy");
  }
});
