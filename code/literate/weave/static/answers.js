/* Numbers that the reader finds: compared with the page's own, which nobody typed. */
(function () {
  "use strict";
  function start() {
    for (const form of document.querySelectorAll("form.answer")) {
      const input = form.querySelector("input"), output = form.querySelector("output");
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        const right = Number(atob(form.dataset.answer));
        const said = Number(input.value.trim().replace(/,(?=\d{3}\b)/g, "").replace(",", "."));
        form.classList.remove("answer-right", "answer-wrong");
        if (!input.value.trim() || !isFinite(said)) output.textContent = "A number, please.";
        else if (Math.abs(said - right) <= Number(form.dataset.tolerance) * Math.abs(right)) {
          output.textContent = "✓ Right.";
          form.classList.add("answer-right");
        } else {
          output.textContent = said < right ? "Not yet: too small." : "Not yet: too large.";
          form.classList.add("answer-wrong");
        }
      });
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
