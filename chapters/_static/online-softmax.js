/* One row of scores, folded block by block. What is held after each step was computed by
   roofline.support.online_softmax; here it is drawn. */
(function () {
  "use strict";
  const { el, stepper, each } = window.bookStepper;
  const NAMES = { m: "m", alpha: "α", s: "s", o: "o", out: "o / s" };
  const WIDE = { width: 704, left: 54, gap: 18, bar: 0.66, scores: 96, weights: 84, digits: 3 };
  const NARROW = { width: 328, left: 32, gap: 8, bar: 0.72, scores: 84, weights: 72, digits: 2 };

  function drawing(data, { width, left, gap, bar, scores, weights, digits }) {
    const blocks = data.scores.length, keys = data.scores.flat().length;
    const column = (width - left - gap * (blocks - 1)) / keys;
    const places = data.scores.flatMap((block, b) => block.map((score, j) => ({
      b, score, value: data.values[b][j],
      x: left + b * gap + (b * data.scores[0].length + j) * column + (column * (1 - bar)) / 2,
    })));
    const thick = column * bar, most = Math.max(...data.scores.flat());
    const scoreFoot = 44 + scores, weightFoot = scoreFoot + 44 + weights, valueTop = weightFoot + 38;
    const height = valueTop + 40;
    const svg = el("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "fold-drawing" });
    const add = (name, attributes, ...children) => { const made = el(`svg:${name}`, attributes, ...children); svg.append(made); return made; };
    // As few signs as a narrow column has room for: .14 where there is none for 0.135.
    const short = (weight) => (weight === 1 ? "1" : digits > 2 ? weight.toFixed(3) : weight.toFixed(2).replace(/^0/, ""));
    const text = (x, y, word, kind) => add("text", { x, y, class: kind }, word);
    const line = (y, kind) => add("line", { x1: left - 4, x2: width, y1: y, y2: y, class: kind });
    const y = (score) => scoreFoot - (score / most) * scores;

    data.scores.forEach((block, b) => {
      const from = places.find((place) => place.b === b).x, to = from + column * block.length - column * (1 - bar);
      add("line", { x1: from, x2: to, y1: 16, y2: 16, class: "fold-brace" });
    });
    const heads = data.scores.map((block, b) => {
      const own = places.filter((place) => place.b === b);
      return text((own[0].x + own[own.length - 1].x + thick) / 2, 10, digits > 2 ? `block ${b + 1}` : b + 1, "fold-block");
    });
    text(0, scoreFoot - scores / 2, "S", "fold-row"); text(0, weightFoot - weights / 2, "p", "fold-row"); text(0, valueTop + 12, "V", "fold-row");
    line(scoreFoot, "fold-foot"); line(weightFoot, "fold-foot");
    const marks = places.map((place) => {
      const middle = place.x + thick / 2;
      const score = add("rect", { x: place.x, width: thick, y: y(place.score), height: scoreFoot - y(place.score) });
      const number = text(middle, y(place.score) - 5, place.score, "fold-number");
      const larger = add("rect", { x: place.x, width: thick, class: "fold-larger" });
      const weight = add("rect", { x: place.x, width: thick, class: "fold-weight" });
      const its = text(middle, 0, "", "fold-number");
      const value = place.value.map((v, c) => text(middle, valueTop + 18 * c, v, "fold-number"));
      return { score, number, larger, weight, its, value };
    });
    const top = line(scoreFoot, "fold-top"), name = text(left - 8, scoreFoot, "", "fold-m");

    function show(stop) {
      const at = stop.m === null ? scoreFoot : y(stop.m);
      for (const end of ["y1", "y2"]) top.setAttribute(end, at);
      if (stop.m !== null) top.setAttribute("x2", places.filter(({ b }) => b <= stop.block).pop().x + thick + 4);
      top.setAttribute("class", stop.m === null ? "fold-top none" : "fold-top");
      name.setAttribute("y", at + 4);
      name.textContent = stop.m === null ? "" : digits > 2 ? `m = ${stop.m}` : "m";
      heads.forEach((head, b) => head.setAttribute("class", b === stop.block && stop.kind !== "begin" && stop.kind !== "divide" ? "fold-block now" : "fold-block"));
      places.forEach(({ b }, i) => {
        const mark = marks[i], begun = stop.kind !== "begin";
        const when = !begun || b > stop.block ? "" : b < stop.block || stop.kind === "divide" ? "past" : "now";
        mark.score.setAttribute("class", `fold-score ${when}`);
        const weight = i < stop.weights.length ? stop.weights[i] : 0, larger = i < stop.larger.length ? stop.larger[i] : 0;
        for (const [rect, tall] of [[mark.weight, weight], [mark.larger, larger]]) {
          rect.setAttribute("y", weightFoot - tall * weights);
          rect.setAttribute("height", tall * weights);
        }
        mark.weight.setAttribute("class", `fold-weight ${stop.kind === "add" && b === stop.block ? "now" : "past"}`);
        mark.its.setAttribute("y", weightFoot - weight * weights - 5);
        mark.its.textContent = i < stop.weights.length ? short(weight) : "";
        for (const value of mark.value) value.setAttribute("class", i < stop.weights.length ? "fold-number" : "fold-number faint");
      });
    }
    return { svg, show };
  }

  function mount(root, data) {
    for (const [name, colour] of Object.entries(data.palette)) root.style.setProperty(`--${name}`, colour);
    const frame = el("div"), fields = {};
    const held = el("div", { class: "fold-held" }, ...Object.entries(NAMES).map(([key, name]) => {
      const value = el("div", { class: "fold-value" }), how = el("div", { class: "fold-how" });
      fields[key] = { value, how };
      return el("div", { class: `fold-field fold-${key}` }, el("div", { class: "fold-name" }, name), value, how);
    }));
    let its = null, shape = null, now = 0;
    const shapeFor = () => (root.clientWidth < 520 ? NARROW : WIDE);
    function picture() {
      shape = shapeFor();
      its = drawing(data, shape);
      frame.replaceChildren(its.svg);
    }
    function show(step) {
      now = step;
      const stop = data.stops[step];
      its.show(stop);
      its.svg.setAttribute("aria-label", `${data.scores.flat().length} scores in ${data.scores.length} blocks, as bars; below them the weights of the keys seen so far. ${stop.says[0]}`);
      for (const [key, { value, how }] of Object.entries(fields)) {
        value.textContent = stop.shown[key];
        how.textContent = stop.how[key] || "";
        value.parentElement.classList.toggle("changed", key in stop.how);
      }
    }
    picture();
    stepper(root, { count: data.stops.length, picture: el("div", {}, frame, held), show, words: (step) => data.stops[step].says });
    new ResizeObserver(() => {
      if (shapeFor() !== shape) { picture(); show(now); }
    }).observe(root);
  }

  each("online-softmax", mount);
})();
