// The film: one run a scale, its spectrum ends, index and coupling ratios at the step of the slider.
const films = JSON.parse(document.getElementById("films").textContent);
const scale = document.getElementById("scale"), slider = document.getElementById("step");
const NS = "http://www.w3.org/2000/svg", W = 420, H = 210, LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 26;
const short = (x) => x === null ? "–" : Number(x).toPrecision(3).replace("-", "−");

function draw(svg, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  svg.append(node);
  return node;
}

// Steps on a log axis from 1; step 0 stands at its left end.
const place = (film, step) => {
  const last = Math.max(...film.accuracy.step, ...film.steps.map((one) => one.step));
  return LEFT + (W - LEFT - RIGHT) * Math.log(Math.max(step, 1)) / Math.log(last);
};

function axes(svg, film, ticks) {
  svg.replaceChildren();
  for (const [y, label] of ticks) {
    draw(svg, "line", {x1: LEFT, x2: W - RIGHT, y1: y, y2: y, class: "grid"});
    draw(svg, "text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, label);
  }
  for (let step = 1; place(film, step) < W - RIGHT; step *= 10)
    draw(svg, "text", {x: place(film, step), y: H - 8, "text-anchor": "middle"}, step.toLocaleString("en"));
  for (const event of ["memorised", "grokked"]) if (film[event] !== null) {
    const x = place(film, film[event]);
    draw(svg, "line", {x1: x, x2: x, y1: TOP, y2: H - BOTTOM, class: "axis", "stroke-dasharray": "4 3"});
    draw(svg, "text", {x: x - 4, y: TOP + 10, "text-anchor": "end"}, event);
  }
}

const cursor = (svg, x) => draw(svg, "line", {x1: x, x2: x, y1: TOP, y2: H - BOTTOM, class: "bound"});
const line = (svg, points, stroke, label) => {
  const d = points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const path = draw(svg, "path", {d, fill: "none", stroke, "stroke-width": 2});
  draw(path, "title", {}, label);
  return path;
};

function accuracies(svg, film, step) {
  const y = (share) => TOP + (H - TOP - BOTTOM) * (1 - share);
  axes(svg, film, [[y(0), "0 %"], [y(0.5), "50 %"], [y(1), "100 %"]]);
  for (const [name, stroke] of [["train_accuracy", "#949494"], ["test_accuracy", "#029e73"]])
    line(svg, film.accuracy[name].map((share, i) => [place(film, film.accuracy.step[i]), y(share)]), stroke,
      name.replace("_", " "));
  cursor(svg, place(film, step));
}

// Numbers of the blocks on a log axis of powers of ten: values(b) are those of a block at a step.
function logs(svg, film, step, values, least, paint) {
  const rows = film.steps.flatMap((one) => Object.entries(one.blocks).flatMap(([block, b]) =>
    values(b).filter(({size}) => size > least).map((found) => ({block, step: one.step, ...found}))));
  const powers = rows.map(({size}) => Math.log10(size));
  const low = Math.floor(Math.min(...powers, 0)), high = Math.ceil(Math.max(...powers, low + 1));
  const y = (size) => TOP + (H - TOP - BOTTOM) * (high - Math.log10(size)) / (high - low);
  const ticks = [];
  for (let power = low; power <= high; power++) ticks.push([y(10 ** power), power < 0 ? `1e${power}` : (10 ** power).toLocaleString("en")]);
  axes(svg, film, ticks);
  for (const [block, stroke] of Object.entries(film.colours))
    paint(block, stroke, rows.filter((row) => row.block === block).map((row) => ({...row, x: place(film, row.step), y: y(row.size)})), y);
  cursor(svg, place(film, step));
}

const dots = (svg, points, stroke, label) => {
  for (const {x, y, size} of points)
    draw(draw(svg, "circle", {cx: x, cy: y, r: 3, fill: stroke}), "title", {}, `${label}: ${short(size)}`);
};
const joined = (svg, points, stroke, label) => line(svg, points.map(({x, y}) => [x, y]), stroke, label);

// Both ends of each block's spectrum: λ_max, and the depth -λ_min where it is negative.
function ends(svg, film, step) {
  const both = (b) => [{size: b.highest, end: "λ_max"}, {size: -b.lowest, end: "depth"}];
  logs(svg, film, step, both, 1e-9, (block, stroke, points) => {
    joined(svg, points.filter(({end}) => end === "λ_max"), stroke, `λ_max of ${block}`).setAttribute("stroke-dasharray", "3 3");
    const depth = points.filter(({end}) => end === "depth");
    joined(svg, depth, stroke, `depth of ${block}`);
    dots(svg, depth, stroke, `depth of ${block}`);
  });
}

// A point where the index is known, and a bar where its bounds differ; bars of blocks stand side by side.
function index(svg, film, step) {
  const names = Object.keys(film.colours);
  const known = (b) => [{size: b.index ?? b.index_upper, low: b.index_lower, sure: b.index !== null}];
  logs(svg, film, step, known, 0, (block, stroke, points, y) => {
    const sure = points.filter((point) => point.sure);
    joined(svg, sure, stroke, `index of ${block}`);
    dots(svg, sure, stroke, `index of ${block}`);
    for (const {x, low, size} of points.filter((point) => !point.sure)) {
      const at = x + 3 * (names.indexOf(block) - (names.length - 1) / 2);
      const bar = draw(svg, "line", {x1: at, x2: at, y1: y(Math.max(low, 1)), y2: y(size), stroke, "stroke-width": 2});
      draw(bar, "title", {}, `index of ${block}: ${low} to ${size}`);
    }
  });
}

function kappa(svg, film, step) {
  logs(svg, film, step, (b) => b.kappa.map((size) => ({size})), 0, (block, stroke, points, y) => {
    dots(svg, points, stroke, `κ of ${block}`);
    draw(svg, "line", {x1: LEFT, x2: W - RIGHT, y1: y(1), y2: y(1), class: "axis"});
  });
}

const charts = {accuracy: accuracies, ends, index, kappa};

function show() {
  const film = films[scale.value], now = film.steps[slider.value];
  document.getElementById("now").textContent = `step ${now.step.toLocaleString("en")}`;
  document.getElementById("run").textContent = `${film.run}: ${film.setting}`;
  slider.setAttribute("aria-valuetext", `step ${now.step}`);
  for (const [name, chart] of Object.entries(charts)) chart(document.getElementById(name), film, now.step);
  const body = document.getElementById("blocks");
  body.replaceChildren();
  for (const [block, b] of Object.entries(now.blocks)) {
    const index = b.index !== null ? b.index : `${b.index_lower} to ${b.index_upper}`;
    const row = body.insertRow();
    for (const text of [block, short(b.lowest), short(b.highest), `${index} (${b.level})`, b.kappa.map(short).join(", ") || "–"])
      row.insertCell().textContent = text;
    row.cells[0].style.borderLeft = `6px solid ${film.colours[block]}`;
    row.cells[0].style.paddingLeft = ".5rem";
  }
}

function choose() {
  // It opens on the plateau.
  const film = films[scale.value], plateau = Math.sqrt((film.memorised ?? 1) * (film.grokked ?? Infinity));
  slider.max = film.steps.length - 1;
  slider.value = film.steps.findLastIndex((one) => one.step <= plateau);
  show();
}
scale.addEventListener("change", choose);
slider.addEventListener("input", show);
choose();

// A link to something folded unfolds it.
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", unfold);
unfold();
