/* The roofline explorer. First a port of roofline.model and roofline.serving, which a
   test compares with the Python; then the drawing; then the controls. */
(function () {
  "use strict";

  // -- the model ------------------------------------------------------------------------

  const attainable = (intensity, peak, bandwidth) => Math.min(peak, intensity * bandwidth);
  const ridge = (peak, bandwidth) => peak / bandwidth;
  const sum = (model, of) => model.layers.reduce((total, l) => total + l.count * of(l), 0);
  const triangle = (n) => (n * (n + 1)) / 2;
  const seen = (layer, context) => (layer.window === null ? context : Math.min(context, layer.window));
  const onEach = (model, context, gpus) =>
    sum(model, (l) => (l.cached * seen(l, context)) / Math.min(gpus, l.copies));
  const touched = (layer, tokens) => layer.experts * (1 - Math.pow(1 - layer.chosen / layer.experts, tokens));
  const mlpWeights = (model, tokens) =>
    sum(model, (l) => (tokens === null ? l.experts : touched(l, tokens)) * l.expert + l.shared);
  const bytesOf = (numbers, bits) => (numbers * bits) / 8;

  function arithmeticOf(gpu, weights) {
    if (weights in gpu.peaks) return weights;
    return "bf16" in gpu.peaks ? "bf16" : "fp16";
  }

  function step(data, model, tokens, outputs, attentionFlops, cacheNumbers, o) {
    const attention = sum(model, (l) => l.attention);
    const perToken = attention + mlpWeights(model, 1) + sum(model, (l) => l.router);
    const embedding = model.vocab * model.hidden;
    const linear = 2 * (tokens * perToken + outputs * embedding);
    const matrices = attention + mlpWeights(model, tokens);
    const others = model.vectors + embedding + tokens * model.hidden;
    const read = bytesOf(matrices, data.formats[o.weights]) + 2 * others;
    const reduces = o.gpus > 1 ? 2 * sum(model, () => 1) : 0;
    const found = {
      linear: linear / o.gpus,
      attention: attentionFlops / o.gpus,
      weightBytes: read / o.gpus,
      cacheBytes: bytesOf(cacheNumbers, data.formats[o.kv]),
      sent: ((reduces * 2 * (o.gpus - 1)) / o.gpus) * tokens * model.hidden * 2,
    };
    found.flops = found.linear + found.attention;
    found.bytes = found.weightBytes + found.cacheBytes;
    found.intensity = found.flops / found.bytes;
    return found;
  }

  function decodeStep(data, model, o) {
    const attention = sum(model, (l) => l.decode_flops_per_key * seen(l, o.context));
    const cached = o.batch * onEach(model, o.context, o.gpus);
    return step(data, model, o.batch, o.batch, o.batch * attention, cached, o);
  }

  function prefillStep(data, model, o) {
    const pairs = (l) => {
      if (l.window === null || l.window >= o.context) return triangle(o.context);
      return triangle(l.window) + l.window * (o.context - l.window);
    };
    const attention = sum(model, (l) => l.flops_per_key * pairs(l));
    const moved = o.context * onEach(model, 1, o.gpus);
    return step(data, model, o.batch * o.context, o.batch, o.batch * attention, o.batch * moved, o);
  }

  /* Seconds at least, by compute, memory and link; null where a link's figure is missing. */
  function bound(found, gpu, weights, bandwidth) {
    const compute =
      found.linear / gpu.peaks[arithmeticOf(gpu, weights)] + found.attention / gpu.peaks[arithmeticOf(gpu, "bf16")];
    if (found.sent && !gpu.nvlink) return null;
    const times = {
      compute,
      memory: found.bytes / (bandwidth || gpu.bandwidth),
      link: found.sent ? found.sent / (gpu.nvlink / 2) : 0,
    };
    const seconds = Math.max(times.compute, times.memory, times.link);
    const by = Object.keys(times).find((name) => times[name] === seconds);
    return { ...times, seconds, by, throughput: found.flops / seconds, ridge: (found.intensity * times.memory) / times.compute };
  }

  function budget(data, model, gpu, o, chunk = 2048, usable = 0.9) {
    const matrices = sum(model, (l) => l.attention) + mlpWeights(model, null);
    const weights = bytesOf(matrices, data.formats[o.weights]) + 2 * (model.parameters - matrices);
    const widest = Math.max(...model.layers.map((l) => l.widest));
    const numbers = chunk * (2 * model.hidden + widest / o.gpus);
    const total =
      weights / o.gpus +
      bytesOf(o.batch * onEach(model, o.context, o.gpus), data.formats[o.kv]) +
      2 * numbers + (4 * o.batch * model.vocab) / o.gpus;
    return { total, usable: usable * gpu.memory, fits: total <= usable * gpu.memory };
  }

  const model = { attainable, ridge, decodeStep, prefillStep, bound, budget, arithmeticOf };
  if (typeof module !== "undefined") module.exports = model;
  if (typeof document === "undefined") return;
  window.rooflineModel = model;

  // -- words and numbers ------------------------------------------------------------------

  const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  function quantity(value, unit) {
    if (!isFinite(value)) return "–";
    if (unit === "FLOP/B") return `${digits(value)} ${unit}`;
    const rounded = Number(value.toPrecision(3));
    const [power, prefix] = PREFIXES.find(([p]) => rounded >= p) || PREFIXES[PREFIXES.length - 1];
    return `${digits(value / power)} ${prefix}${unit}`;
  }
  function digits(value) {
    const three = Number(value.toPrecision(3));
    if (Math.abs(three) >= 100) return Math.round(three).toLocaleString("en-US");
    return three.toFixed(Math.abs(three) >= 10 ? 1 : 2);
  }

  // -- the state --------------------------------------------------------------------------

  const MARK = "#explore?";
  const START = {
    card: "H200", and: "", dtype: "bf16", level: "printed", kernels: "softmax,matmul,attention",
    case: "", operations: "", serve: "", phase: "decode", batch: "8", context: "4096", kv: "bf16", gpus: "1",
  };
  const written = (text) => Object.fromEntries(new URLSearchParams(text));
  function differing(state, from) {
    const left = Object.entries(state).filter(([key, value]) => value !== from[key]);
    return new URLSearchParams(left).toString();
  }

  // -- drawing ----------------------------------------------------------------------------

  const LEFT = 78, RIGHT = 18, TOP = 14, BOTTOM = 46;
  const X = [0.1, 20000];
  const svgns = "http://www.w3.org/2000/svg";

  function el(name, attributes = {}, ...children) {
    const made = name.startsWith("svg:") ? document.createElementNS(svgns, name.slice(4)) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
    made.append(...children.filter((c) => c !== null));
    return made;
  }

  function chart(view) {
    const { ceilings, points, palette, alt, trail } = view;
    const W = Math.min(760, Math.max(340, view.width)), H = Math.round(Math.max(340, W * 0.6));
    const highest = Math.max(...ceilings.map((c) => c.peak));
    const lowest = Math.min(...ceilings.map((c) => X[0] * c.bandwidth), ...points.map((p) => p.flops));
    const top = highest * 3, bottom = lowest / 1.5;
    const log = Math.log10;
    const x = (v) => LEFT + ((log(v) - log(X[0])) / (log(X[1]) - log(X[0]))) * (W - LEFT - RIGHT);
    const y = (v) => H - BOTTOM - ((log(v) - log(bottom)) / (log(top) - log(bottom))) * (H - TOP - BOTTOM);
    const svg = el("svg:svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": alt, class: "explorer-chart" });
    const add = (name, attributes, ...children) => svg.appendChild(el(`svg:${name}`, attributes, ...children));
    const text = (at, words, attributes = {}) => add("text", { x: at[0], y: at[1], ...attributes }, words);

    for (let d = Math.ceil(log(X[0])); d <= log(X[1]); d++) {
      const v = 10 ** d;
      add("line", { x1: x(v), x2: x(v), y1: TOP, y2: H - BOTTOM, class: "grid" });
      text([x(v), H - BOTTOM + 17], String(d < 0 ? v.toFixed(-d) : W < 500 && v >= 1000 ? `${v / 1000}k` : v.toLocaleString("en-US")), { "text-anchor": "middle" });
    }
    for (let d = Math.ceil(log(bottom)); d <= log(top); d++) {
      add("line", { x1: LEFT, x2: W - RIGHT, y1: y(10 ** d), y2: y(10 ** d), class: "grid" });
      text([LEFT - 7, y(10 ** d) + 4], quantity(10 ** d, "FLOP/s").replace(/\.00?|\.0/, ""), { "text-anchor": "end" });
    }
    text([(LEFT + W - RIGHT) / 2, H - 8], "arithmetic intensity (FLOP/B)", { "text-anchor": "middle" });

    const taken = [];
    const free = (box) => !taken.some((t) => box[0] < t[2] && t[0] < box[2] && box[1] < t[3] && t[1] < box[3]);
    const inside = (box) => box[0] > LEFT && box[2] < W - RIGHT && box[1] > TOP && box[3] < H - BOTTOM;
    for (const p of points) taken.push([x(p.intensity) - 6, y(p.flops) - 6, x(p.intensity) + 6, y(p.flops) + 6]);

    ceilings.forEach((c, index) => {
      const knee = c.peak / c.bandwidth;
      const from = Math.max(X[0], bottom / c.bandwidth);
      const dash = c.measured ? null : "7 4";
      add("path", {
        d: `M${x(from)},${y(from * c.bandwidth)} L${x(knee)},${y(c.peak)} L${x(X[1])},${y(c.peak)}`,
        fill: "none", stroke: c.color, "stroke-width": 2, "stroke-dasharray": dash,
      });
      add("line", { x1: x(knee), x2: x(knee), y1: y(c.peak), y2: H - BOTTOM, class: "knee" });
      const knees = `ridge ${quantity(knee, "FLOP/B")}`;
      text([x(knee) + 4, H - BOTTOM - 6 - 14 * index], knees);
      taken.push([x(knee), H - BOTTOM - 18 - 14 * index, x(knee) + 130, H - BOTTOM - 4 - 14 * index]);
      const roof = `${c.name}, ${c.dtype}: ${quantity(c.peak, "FLOP/s")}`;
      const above = c.peak >= highest;
      text([W - RIGHT - 4, y(c.peak) + (above ? -11 : 20)], roof, { "text-anchor": "end" });
      taken.push([W - RIGHT - roof.length * 6.6, y(c.peak) - (above ? 23 : -8), W - RIGHT, y(c.peak) + (above ? -9 : 22)]);
      const slope = (-Math.atan2(y(10) - y(1), x(10) - x(1)) * 180) / Math.PI;
      const at = Math.max(X[0], from) * (index % 2 ? 14 : 5);
      const down = index % 2 ? 15 : -7;
      text([x(at), y(at * c.bandwidth) + down], `${c.name}: ${quantity(c.bandwidth, "B/s")}`, {
        transform: `rotate(${-slope} ${x(at)} ${y(at * c.bandwidth)})`, class: "slope",
      });
    });

    if (trail) {
      const path = trail.map((p, i) => `${i ? "L" : "M"}${x(p.intensity)},${y(p.flops)}`).join(" ");
      add("path", { d: path, fill: "none", stroke: palette.red, "stroke-width": 1.3, opacity: 0.6 });
    }
    for (const p of points) {
      if (p.from) add("line", { x1: x(p.intensity), x2: x(p.intensity), y1: y(p.from), y2: y(p.flops), stroke: p.color, "stroke-width": 1 });
      const circle = add("circle", {
        cx: x(p.intensity), cy: y(p.flops), r: p.measured ? 5 : 6, class: "point",
        fill: p.measured ? p.color : "none", stroke: p.color, "stroke-width": 2,
      });
      circle.append(el("svg:title", {}, p.told));
    }
    for (const p of points) {
      if (!p.label) continue;
      const width = p.label.length * 6.5, px = x(p.intensity), py = y(p.flops);
      const tries = [[11, 4], [-11 - width, 4], [11, 20], [-11 - width, -10], [11, -12], [-width / 2, 24], [-width / 2, -16], [-11 - width, 20], [11, 38], [-11 - width, 38], [-11 - width, 56], [11, 56]];
      const box = ([dx, dy]) => [px + dx, py + dy - 11, px + dx + width, py + dy + 3];
      const at = tries.find((t) => free(box(t)) && inside(box(t))) || tries.find((t) => inside(box(t))) || tries[0];
      taken.push(box(at));
      text([px + at[0], py + at[1]], p.label);
    }
    return svg;
  }

  // -- the widget -------------------------------------------------------------------------

  function mount(root, data) {
    const start = { ...START, ...written(root.dataset.state || "") };
    let state = { ...start };
    const fromUrl = () => {
      if (location.hash.startsWith(MARK)) state = { ...start, ...written(location.hash.slice(MARK.length)) };
      mend();
    };
    const gpu = (name) => data.gpus.find((g) => g.name === name);

    /* What does not exist (an old link, a card without the format) becomes what does. */
    function mend() {
      if (!gpu(state.card)) state.card = start.card;
      if (state.and && !gpu(state.and)) state.and = "";
      if (!(state.dtype in gpu(state.card).peaks)) state.dtype = arithmeticOf(gpu(state.card), "bf16");
      if (state.level !== "printed" && (state.card !== data.device || !data.levels.some((l) => l.id === state.level))) state.level = "printed";
      if (state.serve && !data.models.some((m) => m.name === state.serve)) state.serve = "";
      if (!(state.kv in data.formats)) state.kv = "bf16";
      for (const [key, most] of [["batch", 1024], ["context", 131072], ["gpus", 8]])
        state[key] = String(Math.min(most, Math.max(1, Math.round(Number(state[key])) || Number(START[key]))));
    }

    // Controls, built once.
    const id = (() => { let n = 0; const stem = `x${document.querySelectorAll(".explorer-chart").length}-`; return () => stem + n++; })();
    const controls = {};
    function select(key, label, options, note) {
      const own = id();
      const box = el("select", { id: own, class: "explorer-select" });
      controls[key] = box;
      box.addEventListener("change", () => set(key, box.value));
      fill(box, options);
      return el("div", { class: "explorer-field", "data-field": key }, el("label", { for: own }, label), box, note || null);
    }
    function fill(box, options) {
      box.replaceChildren(...options.map(([value, words]) => el("option", { value }, words)));
    }
    function slider(key, label, most, words) {
      const own = id(), steps = Math.log2(most) * 4;
      const box = el("input", { id: own, type: "range", min: 0, max: steps, step: 1 });
      const out = el("output", { for: own });
      controls[key] = {
        set value(v) {
          box.value = Math.round(Math.log2(Number(v)) * 4);
          out.textContent = words(v);
          box.setAttribute("aria-valuetext", words(v));
        },
      };
      box.addEventListener("input", () => set(key, String(Math.round(2 ** (Number(box.value) / 4)))));
      return el("div", { class: "explorer-field explorer-slider", "data-field": key }, el("label", { for: own }, label), box, out);
    }
    function check(label, is, flip) {
      const own = id();
      const box = el("input", { id: own, type: "checkbox" });
      box.addEventListener("change", () => flip(box.checked));
      refreshers.push(() => (box.checked = is()));
      return el("div", { class: "explorer-check" }, box, el("label", { for: own }, label));
    }
    const refreshers = [];
    const list = (key) => state[key].split(",").filter(Boolean);
    const flipIn = (key, value) => (on) => {
      const left = list(key).filter((v) => v !== value);
      set(key, (on ? [...left, value] : left).join(","));
    };
    const chosenCase = (family) => {
      const named = list("case").map((c) => c.split(":")).find(([f]) => f === family.id);
      const largest = family.cases.reduce((best, c, i) => (c.flops > family.cases[best].flops ? i : best), 0);
      return family.cases[named ? Number(named[1]) : largest] ? (named ? Number(named[1]) : largest) : largest;
    };
    const cards = data.gpus.map((g) => [g.name, g.grade === "datasheet" ? g.name : `${g.name} (${g.grade})`]);

    const kernelFields = data.kernels.map((family) => {
      const own = id();
      const which = el("select", { id: own, class: "explorer-select", "aria-label": `case of ${family.name}` });
      fill(which, family.cases.map((c, i) => [String(i), c.name]));
      which.addEventListener("change", () => {
        const left = list("case").filter((c) => c.split(":")[0] !== family.id);
        set("case", [...left, `${family.id}:${which.value}`].join(","));
      });
      refreshers.push(() => (which.value = String(chosenCase(family))));
      return el("div", { class: "explorer-kernel" }, check(family.name, () => list("kernels").includes(family.id), flipIn("kernels", family.id)), which);
    });
    const operationFields = data.operations.map((o, i) =>
      check(o.name, () => list("operations").includes(String(i)), flipIn("operations", String(i))));

    const serving = el("div", { class: "explorer-serving" },
      select("phase", "phase", [["decode", "decode: a token for each"], ["prefill", "prefill: the whole prompt"]]),
      slider("batch", "batch", 1024, (v) => `${v} sequence${v === "1" ? "" : "s"}`),
      slider("context", "context", 131072, (v) => `${Number(v).toLocaleString("en-US")} tokens`),
      select("kv", "cache in", [["bf16", "bf16"], ["fp8", "fp8"]]),
      select("gpus", "cards that share it", [1, 2, 4, 8].map((n) => [String(n), String(n)])),
    );
    const picture = el("div", { class: "explorer-picture" });
    const said = el("p", { class: "explorer-said", "aria-live": "polite" });
    const copy = el("button", { type: "button", class: "explorer-button" }, "copy a link to this view");
    copy.addEventListener("click", async () => {
      remember(true);
      try { await navigator.clipboard.writeText(location.href); copy.textContent = "copied"; }
      catch { copy.textContent = "the address bar has it"; }
      setTimeout(() => (copy.textContent = "copy a link to this view"), 2000);
    });
    const reset = el("button", { type: "button", class: "explorer-button" }, "start again");
    reset.addEventListener("click", () => { state = { ...start }; mend(); remember(true); draw(); });
    root.replaceChildren(
      picture, said,
      el("div", { class: "explorer-controls" },
        el("fieldset", {}, el("legend", {}, "Ceilings"),
          select("card", "card", cards), select("and", "compare with", [["", "no other"], ...cards]),
          select("dtype", "number format", []), select("level", "memory level", [])),
        el("fieldset", {}, el("legend", {}, "Kernels of this book"), ...kernelFields,
          el("details", {}, el("summary", {}, "operations that are only counted"), ...operationFields)),
        el("fieldset", {}, el("legend", {}, "A language model being served"),
          select("serve", "model", [["", "none"], ...data.models.map((m) => [m.name, m.name])]), serving),
        el("p", { class: "explorer-buttons" }, copy, reset)),
    );

    function set(key, value) {
      state[key] = value;
      mend();
      remember(true);
      draw();
    }
    function remember(always) {
      const rest = differing(state, start);
      if (always) history.replaceState(null, "", rest ? MARK + rest : MARK);
    }

    function ceilingsOf(g, color) {
      const dtype = state.dtype in g.peaks ? state.dtype : arithmeticOf(g, "bf16");
      const level = state.level !== "printed" && g.name === data.device ? data.levels.find((l) => l.id === state.level) : null;
      const roof = level && data.roofs[dtype];
      const measured = Object.fromEntries(Object.entries(data.roofs).map(([d, r]) => [d, r.rate]));
      return {
        gpu: level ? { ...g, peaks: { ...g.peaks, ...measured } } : g, name: g.name, dtype, color, measured: Boolean(level && roof),
        bandwidth: level ? level.rate : g.bandwidth, peak: roof ? roof.rate : g.peaks[dtype],
      };
    }

    function draw() {
      const main = gpu(state.card);
      fill(controls.dtype, Object.keys(main.peaks).map((d) => [d, d]));
      const levels = main.name === data.device ? data.levels.map((l) => [l.id, l.name]) : [];
      fill(controls.level, [["printed", "memory, as printed"], ...levels]);
      for (const [key, box] of Object.entries(controls)) box.value = state[key];
      for (const refresh of refreshers) refresh();
      serving.hidden = !state.serve;

      const p = data.palette;
      const ceilings = [ceilingsOf(main, p.blue)];
      if (state.and && state.and !== state.card) ceilings.push(ceilingsOf(gpu(state.and), p.purple));
      const first = ceilings[0];
      const points = [];
      for (const family of data.kernels) {
        if (!list("kernels").includes(family.id)) continue;
        const c = family.cases[chosenCase(family)], intensity = c.flops / c.bytes;
        const predicted = attainable(intensity, first.peak, first.bandwidth);
        const own = first.gpu.name === data.device && c.dtype === state.dtype;
        points.push({
          intensity, flops: predicted, color: p.green, measured: false, label: own ? "" : family.name,
          told: `${family.name}, ${c.name}: at most ${quantity(predicted, "FLOP/s")} at ${quantity(intensity, "FLOP/B")}`,
        });
        if (own) {
          const flops = c.flops / c.seconds;
          points.push({
            intensity, flops, from: predicted, color: p.green, measured: true, label: `${family.name}, ${digits((100 * flops) / predicted)}%`,
            told: `${family.name}, ${c.name}: ${quantity(flops, "FLOP/s")}. ${c.source}`,
          });
        }
      }
      for (const i of list("operations")) {
        const o = data.operations[Number(i)];
        if (!o) continue;
        const intensity = o.flops / o.bytes, flops = attainable(intensity, first.peak, first.bandwidth);
        points.push({ intensity, flops, color: p.orange, measured: false, label: o.name, told: `${o.name}: at most ${quantity(flops, "FLOP/s")}` });
      }
      const words = [`${first.name} in ${first.dtype}: the ridge is at ${quantity(first.peak / first.bandwidth, "FLOP/B")}.`];
      const trail = [];
      if (state.serve) words.push(serve(first, points, trail));
      else words.push("Hollow points are predicted, filled ones measured; per cents are of the prediction.");
      const alt = `Log-log roofline. ${words.join(" ")} ${points.map((q) => q.told.split(". ")[0]).join("; ")}`;
      picture.replaceChildren(chart({ width: root.clientWidth, ceilings, points, palette: p, alt, trail: trail.length > 1 ? trail : null }));
      said.textContent = words.join(" ");
    }

    function serve(first, points, trail) {
      const m = data.models.find((each) => each.name === state.serve);
      const weights = state.dtype in data.formats ? state.dtype : "bf16";
      const o = { batch: Number(state.batch), context: Number(state.context), gpus: Number(state.gpus), kv: state.kv, weights };
      if (m.layers.some((l) => l.heads % o.gpus)) return `${m.name} has heads that ${o.gpus} cards cannot share evenly.`;
      const stepOf = state.phase === "decode" ? decodeStep : prefillStep;
      const at = (batch) => {
        const found = stepOf(data, m, { ...o, batch });
        return [found, bound(found, first.gpu, weights, first.bandwidth)];
      };
      const [found, limits] = at(o.batch);
      if (!limits) return `The table has no link figure for the ${first.name}: choose one card.`;
      for (let b = 0; b <= 40; b++) {
        const [each, its] = at(2 ** (b / 4));
        trail.push({ intensity: each.intensity, flops: its.throughput });
      }
      points.push({
        intensity: found.intensity, flops: limits.throughput, color: data.palette.red, measured: false,
        label: `${state.phase} of ${m.name}, batch ${o.batch}`,
        told: `${state.phase} of ${m.name}: ${quantity(limits.throughput, "FLOP/s")} on each card at ${quantity(found.intensity, "FLOP/B")}`,
      });
      const room = budget(data, m, first.gpu, o);
      const tokens = state.phase === "decode" ? o.batch : o.batch * o.context;
      const by = { memory: "by memory", compute: "by compute", link: "by the link between the cards" }[limits.by];
      const kind = weights === o.kv ? `weights and cache in ${weights}` : `weights in ${weights}, cache in ${o.kv}`;
      return (
        `One ${state.phase} step of ${m.name} (${kind}) with ${o.batch} × ${o.context.toLocaleString("en-US")} tokens on ${o.gpus} card${o.gpus > 1 ? "s" : ""} ` +
        `has ${quantity(found.intensity, "FLOP/B")} and is bound ${by}: ` +
        `${quantity(limits.seconds, "s")} or longer, at most ${quantity(tokens / limits.seconds, "token/s")}. ` +
        `It takes ${quantity(room.total, "B")} of each card's memory, ` +
        (room.fits ? "which fits." : `and ${quantity(room.usable, "B")} may be used: it does not fit.`) +
        (m.longest && o.context > m.longest ? ` The model was made for ${m.longest.toLocaleString("en-US")} tokens.` : "")
      );
    }

    fromUrl();
    draw();
    window.addEventListener("hashchange", () => { fromUrl(); draw(); });
    let width = root.clientWidth;
    new ResizeObserver(() => {
      if (root.clientWidth !== width) { width = root.clientWidth; draw(); }
    }).observe(root);
    root.dataset.ready = "";
  }

  function startAll() {
    const data = (window.widgetData || {})["roofline-explorer"];
    for (const root of document.querySelectorAll('[data-widget="roofline-explorer"]')) if (data) mount(root, data);
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
  else startAll();
})();
