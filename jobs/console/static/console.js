// What the console adds to pages that work without it: parts that change by themselves, and screens' own modules' hooks.

/** Parts of the page by server-sent events, while the page is seen: a browser has only some connections for one server. */
function listen(element) {
  let source = null;
  const begin = () => {
    if (source || document.hidden) return;
    source = new EventSource(element.dataset.live);
    source.onmessage = (event) => {
      const part = JSON.parse(event.data);
      const target = document.getElementById(part.id);
      if (target) target.innerHTML = part.html;
    };
  };
  const end = () => {
    source?.close();
    source = null;
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()));
  window.addEventListener("pagehide", end);
  window.addEventListener("pageshow", begin);
  begin();
}

/** A part of a page, as HTML that the server has rendered and escaped. */
export async function fragment(url) {
  const answer = await fetch(url, { headers: { "x-fragment": "1" } });
  const text = await answer.text();
  if (!answer.ok) throw new Error(text || `${answer.status}`);
  return text;
}

for (const element of document.querySelectorAll("[data-live]")) listen(element);
