/* Small things for the reader: how far down the page one is, and a download that is one. */
(function () {
  "use strict";
  function start() {
    for (const link of document.querySelectorAll("a.btn-notebook")) {
      link.setAttribute("download", "");
      link.removeAttribute("target");
    }
    const article = document.querySelector("article.bd-article");
    if (!article) return;
    const bar = document.createElement("div");
    bar.className = "reading-progress";
    bar.setAttribute("aria-hidden", "true");
    document.body.append(bar);
    let waiting = false;
    function move() {
      waiting = false;
      const box = article.getBoundingClientRect();
      const way = box.height - window.innerHeight;
      const read = way > 0 ? Math.min(1, Math.max(0, -box.top / way)) : 1;
      bar.style.transform = `scaleX(${read})`;
    }
    addEventListener("scroll", () => {
      if (!waiting) { waiting = true; requestAnimationFrame(move); }
    }, { passive: true });
    addEventListener("resize", move);
    move();
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
