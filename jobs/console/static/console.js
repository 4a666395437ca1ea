// What the console adds to pages that work without it.

import "./topics.js";

/** Parts of the page by server-sent events, while the page is seen: a browser has few connections for one server. */
function listen(element) {
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
      const target = document.getElementById(part.id);
      if (target) target.innerHTML = part.html;
    };
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
  window.addEventListener("pagehide", end);
  window.addEventListener("pageshow", begin);
  begin();
}

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
