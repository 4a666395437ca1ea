// Publish without leaving the page, so that watching continues. The form keeps its content.

import { session } from "./console.js";

const form = document.getElementById("try-form");
const answer = document.getElementById("try-answer");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  event.stopPropagation();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    form.elements.token.value = (await session())?.token ?? form.elements.token.value;
    const response = await fetch(form.action, {
      method: "POST",
      headers: { "x-fragment": "1" },
      body: new URLSearchParams(new FormData(form)),
    });
    const text = await response.text();
    if (response.ok) answer.innerHTML = text;
    else answer.textContent = text;
  } catch {
    answer.textContent = "Can't reach the console.";
  } finally {
    button.disabled = false;
    button.focus();
  }
});
