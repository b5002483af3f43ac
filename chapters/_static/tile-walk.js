/* The walk over the tiles of a product, in two orders side by side. Where each program goes
   and what its wave has fetched was computed by roofline.support.tile_walk; here it is drawn. */
(function () {
  "use strict";
  const { el, stepper, each } = window.bookStepper;
  const TILE = 10, GAP = 7, EDGE = 1, NAME = 10;

  function grid(data) {
    const [down, across] = data.grid, depth = data.depth;
    const left = EDGE + depth * TILE + GAP, top = left;
    const width = left + across * TILE + EDGE, height = top + down * TILE + NAME;
    const svg = el("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "walk-grid" });
    const square = (x, y) => {
      const made = el("svg:rect", { x, y, width: TILE, height: TILE });
      svg.append(made);
      return made;
    };
    const rows = (n) => [...Array(n).keys()];
    const a = rows(down).map((i) => rows(depth).map((k) => square(EDGE + k * TILE, top + i * TILE)));
    const b = rows(across).map((j) => rows(depth).map((k) => square(left + j * TILE, EDGE + k * TILE)));
    const c = rows(down).map((i) => rows(across).map((j) => square(left + j * TILE, top + i * TILE)));
    const numbers = c.map((row, i) => row.map((_, j) => {
      const made = el("svg:text", { x: left + (j + 0.5) * TILE, y: top + (i + 0.5) * TILE, class: "walk-number" });
      svg.append(made);
      return made;
    }));
    const name = (x, y, word) => svg.append(el("svg:text", { x, y, class: "walk-name" }, word));
    name(EDGE + (depth * TILE) / 2, height - 2.5, "A");
    name(left + (across * TILE) / 2, height - 2.5, "C");
    name(left - 4.5, EDGE + (depth * TILE) / 2 + 2.5, "B");

    function show(stop, tiles) {
      svg.classList.toggle("whole", stop.end - stop.since > 1); // a whole wave: nothing stands out
      const state = (list, fresh, i) => (fresh.includes(i) ? "new" : list.includes(i) ? "held" : "");
      a.forEach((panel, i) => panel.forEach((tile) => tile.setAttribute("class", `panel ${state(stop.rows, stop.new[0], i)}`)));
      b.forEach((panel, j) => panel.forEach((tile) => tile.setAttribute("class", `panel ${state(stop.cols, stop.new[1], j)}`)));
      tiles.forEach(([i, j], pid) => {
        const when = pid >= stop.end ? "" : pid >= stop.since ? "new" : pid >= stop.first ? "now" : "past";
        c[i][j].setAttribute("class", `tile ${when}`);
        numbers[i][j].textContent = when === "new" || when === "now" ? pid : "";
      });
    }
    return { svg, show };
  }

  function mount(root, data) {
    for (const [name, colour] of Object.entries(data.palette)) root.style.setProperty(`--${name}`, colour);
    const others = Object.keys(data.says);
    let group = String(data.chosen);
    const choice = el("select", { class: "explorer-select", "aria-label": "rows in a group" },
      ...others.map((rows) => el("option", { value: rows }, rows)));
    choice.value = group;
    const column = (...title) => {
      const its = grid(data);
      const fetched = el("strong"), asked = el("span"), bar = el("span", { class: "walk-bar" });
      const box = el("div", { class: "walk-order" },
        el("p", { class: "walk-title" }, ...title), its.svg,
        el("p", { class: "walk-count" }, fetched, " tiles fetched", asked),
        el("div", { class: "walk-meter", "aria-hidden": "true" }, bar));
      return {
        box,
        show(rows, step, name) {
          const stop = data.stops[rows][step];
          its.show(stop, data.tiles[rows]);
          its.svg.setAttribute("aria-label", `${name}: ${stop.end} of ${data.tiles[rows].length} tiles of C taken, ${stop.fetched} tiles of A and B fetched`);
          fetched.textContent = stop.fetched.toLocaleString("en-US");
          asked.textContent = `, ${stop.asked.toLocaleString("en-US")} asked for`;
          bar.style.width = `${stop.asked ? (100 * stop.fetched) / stop.asked : 0}%`;
        },
      };
    };
    const plain = column("row by row"), grouped = column("groups of ", choice);
    const picture = el("div", { class: "walk-pair" }, plain.box, grouped.box);
    const { draw } = stepper(root, {
      count: data.stops[1].length,
      picture,
      words: (step) => data.says[group][step],
      show(step) {
        plain.show("1", step, "row by row");
        grouped.show(group, step, `groups of ${group}`);
      },
    });
    choice.addEventListener("change", () => { group = choice.value; draw(); });
  }

  each("tile-walk", mount);
})();
