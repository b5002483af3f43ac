/* Hover cards for links, and for words with a note (numbers, statuses): by mouse, by
   keyboard focus, and by a long press. Escape closes one. */
(function () {
  "use strict";
  const elsewhere = window.literateCards || {};
  const WHOLE = "figure, div, table, li";

  function here(id) {
    let target = document.getElementById(id);
    if (!target) return null;
    if (target.tagName === "SPAN" && !target.textContent.trim())
      target = target.nextElementSibling || target.parentElement;
    if (target.tagName === "DT") return [target, target.nextElementSibling];
    if (target.tagName === "SECTION") {
      const heading = target.querySelector("h1, h2, h3, h4");
      const first = target.querySelector(":scope > p");
      return heading ? [heading, first] : null;
    }
    return target.matches(WHOLE) ? [target] : null;
  }

  function tidy(box) {
    box.querySelectorAll(".headerlink, .eqno, script, button, .copybtn").forEach((e) => e.remove());
    box.querySelectorAll("[tabindex]").forEach((e) => e.removeAttribute("tabindex"));
    box.querySelectorAll("h1, h2, h3, h4").forEach((e) => {
      const title = document.createElement("p");
      title.className = "card-title";
      title.append(...e.childNodes);
      e.replaceWith(title);
    });
    box.querySelectorAll("[id]").forEach((e) => {
      if (!e.closest("svg")) e.removeAttribute("id");
    });
    // A drawing's own ids would be there twice: give the copy's a name of their own.
    box.querySelectorAll("svg").forEach((svg) => {
      const mark = "-card";
      svg.querySelectorAll("[id]").forEach((e) => (e.id += mark));
      svg.querySelectorAll("*").forEach((e) => {
        for (const a of ["href", "xlink:href", "clip-path", "fill"]) {
          const value = e.getAttribute(a);
          if (value && /^#|^url\(#/.test(value)) {
            const end = value.endsWith(")") ? ")" : "";
            e.setAttribute(a, (end ? value.slice(0, -1) : value) + mark + end);
          }
        }
      });
    });
    return box;
  }

  function content(anchor) {
    const box = document.createElement("div");
    box.className = "card-body";
    if (anchor.dataset.note) {
      box.textContent = anchor.dataset.note;
      return box;
    }
    const href = anchor.getAttribute("href");
    if (href.startsWith("#")) {
      for (const part of here(decodeURIComponent(href.slice(1))) || [])
        if (part) box.append(part.cloneNode(true));
    } else {
      box.innerHTML = elsewhere[href];
    }
    return tidy(box);
  }

  /* A card may bring a formula to a page that has none: fetch what sets it, once. */
  let formulas = null;
  function typeset(box) {
    if (!box.querySelector(".math") || box.querySelector("mjx-container")) return;
    const path = window.literateMathjax;
    if (!window.MathJax && path) {
      const source = path.includes("://") ? path : document.documentElement.dataset.content_root + "_static/" + path;
      window.MathJax = { options: { processHtmlClass: "math" }, startup: { typeset: false } };
      formulas = new Promise((done) => {
        const script = document.createElement("script");
        script.src = source;
        script.onload = () => window.MathJax.startup.promise.then(done);
        document.head.append(script);
      });
    }
    Promise.resolve(formulas).then(() => {
      if (window.MathJax && MathJax.typesetPromise) return MathJax.typesetPromise([box]);
    });
  }

  const escape = {
    name: "escape",
    fn(instance) {
      const close = (event) => event.key === "Escape" && instance.hide();
      return {
        onShow: () => document.addEventListener("keydown", close),
        onHide: () => document.removeEventListener("keydown", close),
      };
    },
  };

  function start() {
    const root = document.querySelector("article");
    if (!root || !window.tippy) return;
    for (const link of root.querySelectorAll("a[href]:not(.headerlink)")) {
      if (link.closest(".toctree-wrapper, .prev-next-area, .code-block-caption > .caption-number")) continue;
      const href = link.getAttribute("href");
      const found = href.startsWith("#") ? href.length > 1 && here(decodeURIComponent(href.slice(1))) : href in elsewhere;
      if (found) link.classList.add("has-card");
    }
    for (const word of root.querySelectorAll(".num[title], .block-status[title]")) {
      word.dataset.note = word.title;
      word.removeAttribute("title");
      word.classList.add("has-card");
    }
    tippy.delegate(root, {
      target: ".has-card",
      appendTo: () => document.body,
      allowHTML: true,
      interactive: true,
      theme: "card",
      maxWidth: 480,
      delay: [250, 100],
      duration: matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : [120, 80],
      placement: "bottom-start",
      touch: ["hold", 400],
      aria: { content: "describedby", expanded: false },
      plugins: [escape],
      onShow(instance) {
        const box = content(instance.reference);
        if (!box.textContent.trim() && !box.querySelector("svg")) return false;
        instance.setContent(box);
        typeset(box);
      },
    });
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
