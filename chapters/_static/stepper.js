/* A picture that is walked through step by step. Whoever draws it says how many steps there
   are, shows one, and has words for it; here are the controls, which a keyboard works, and
   the line that says aloud where one is. Nothing moves by itself. */
(function () {
  "use strict";

  /* An element with attributes and children; "svg:" before its name makes it a drawing's. */
  function el(name, attributes, ...children) {
    const made = name.startsWith("svg:")
      ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  /* count: how many steps; picture: the element that shows one; show(step): draw it;
     words(step): lines that say it. The page names the step to open with. Returns draw(), for
     when something else has changed. */
  function stepper(root, { count, picture, show, words }) {
    let step = Math.min(count - 1, Number(root.dataset.state) || 0);
    const range = el("input", { type: "range", min: 0, max: count - 1, step: 1, "aria-label": `step of ${root.getAttribute("aria-label")}` });
    const place = el("output", { class: "stepper-place" });
    const said = el("p", { class: "stepper-said", "aria-live": "polite" });
    const button = (name, to) => {
      const made = el("button", { type: "button", class: "stepper-button" }, name);
      made.addEventListener("click", () => go(to()));
      return made;
    };
    const first = button("first", () => 0), back = button("back", () => step - 1);
    const next = button("next", () => step + 1), last = button("last", () => count - 1);

    function go(to) {
      step = Math.min(count - 1, Math.max(0, to));
      draw();
    }
    function draw() {
      range.value = step;
      range.setAttribute("aria-valuetext", `step ${step} of ${count - 1}`);
      place.textContent = `step ${step} of ${count - 1}`;
      // Not "disabled": a button that goes away under one's finger takes the focus with it.
      for (const each of [first, back]) each.setAttribute("aria-disabled", step === 0);
      for (const each of [next, last]) each.setAttribute("aria-disabled", step === count - 1);
      show(step);
      say(said, words(step));
    }
    function say(where, lines) {
      if (where.textContent !== lines.join(" "))
        where.replaceChildren(...lines.flatMap((line) => [el("span", { class: "stepper-line" }, line), " "]).slice(0, -1));
    }
    /* Room for the longest words, so that what stands below stays where it is. */
    function room() {
      const probe = el("p", { class: "stepper-said", "aria-hidden": "true", style: "visibility: hidden; position: absolute; width: 100%; min-height: 0" });
      said.parentElement.append(probe);
      let tallest = 0;
      for (let i = 0; i < count; i++) {
        say(probe, words(i));
        tallest = Math.max(tallest, probe.offsetHeight);
      }
      probe.remove();
      said.style.minHeight = `${tallest}px`;
    }

    range.addEventListener("input", () => go(Number(range.value)));
    const keys = { ArrowRight: () => step + 1, ArrowLeft: () => step - 1, Home: () => 0, End: () => count - 1 };
    root.addEventListener("keydown", (event) => {
      const taken = event.target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey;
      if (taken || !(event.key in keys)) return;
      event.preventDefault();
      go(keys[event.key]());
    });
    root.classList.add("stepper");
    root.replaceChildren(
      picture,
      el("div", { class: "stepper-controls" }, first, back, range, next, last, place),
      el("div", { class: "stepper-words" }, said),
    );
    draw();
    room();
    let width = root.clientWidth;
    new ResizeObserver(() => {
      if (root.clientWidth === width) return;
      width = root.clientWidth;
      room();
    }).observe(root);
    root.dataset.ready = "";
    return { draw: () => { draw(); room(); } };
  }

  /* Begin once for every box of this name on the page, with its data. */
  function each(name, mount) {
    const begin = () => {
      const data = (window.widgetData || {})[name];
      for (const root of document.querySelectorAll(`[data-widget="${name}"]`)) if (data) mount(root, data);
    };
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
    else begin();
  }

  window.bookStepper = { el, stepper, each };
})();
