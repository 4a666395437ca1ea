// Publishing without leaving the page: what is being watched goes on beside it. The form stays as it is for the next one.

const form = document.getElementById("try-form");
const answer = document.getElementById("try-answer");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  event.stopPropagation();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const said = await fetch(form.action, {
      method: "POST",
      headers: { "x-fragment": "1" },
      body: new URLSearchParams(new FormData(form)),
    });
    const text = await said.text();
    if (said.ok) answer.innerHTML = text;
    else answer.textContent = text;
  } catch {
    answer.textContent = "Can't reach the console.";
  } finally {
    button.disabled = false;
    button.focus();
  }
});
