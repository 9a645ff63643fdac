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

// Both ends of each block's spectrum on a log axis: λ_max, and the depth -λ_min where it is negative.
function ends(svg, film, step) {
  const found = (value) => film.steps.flatMap((one) => Object.entries(one.blocks).map(([name, b]) => [name, one.step, value(b)]))
    .filter(([, , size]) => size > 1e-9);
  const highest = found((b) => b.highest), depth = found((b) => -b.lowest);
  const powers = [...highest, ...depth].map(([, , size]) => Math.log10(size));
  const low = Math.floor(Math.min(...powers, -3)), high = Math.ceil(Math.max(...powers, low + 1));
  const y = (size) => TOP + (H - TOP - BOTTOM) * (high - Math.log10(size)) / (high - low);
  const ticks = [];
  for (let power = low; power <= high; power++) ticks.push([y(10 ** power), `1e${power}`]);
  axes(svg, film, ticks);
  for (const [block, stroke] of Object.entries(film.colours)) {
    const points = (rows) => rows.filter(([name]) => name === block).map(([, at, size]) => [place(film, at), y(size)]);
    line(svg, points(highest), stroke, `λ_max of ${block}`).setAttribute("stroke-dasharray", "3 3");
    line(svg, points(depth), stroke, `depth of ${block}`);
    for (const [cx, cy] of points(depth))
      draw(draw(svg, "circle", {cx, cy, r: 4, fill: stroke}), "title", {}, `depth of ${block}`);
  }
  cursor(svg, place(film, step));
}

function show() {
  const film = films[scale.value], now = film.steps[slider.value];
  document.getElementById("now").textContent = `step ${now.step.toLocaleString("en")}`;
  document.getElementById("run").textContent = `${film.run}: ${film.setting}`;
  slider.setAttribute("aria-valuetext", `step ${now.step}`);
  accuracies(document.getElementById("accuracy"), film, now.step);
  ends(document.getElementById("ends"), film, now.step);
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
  const film = films[scale.value], plateau = film.steps.findIndex((one) => "E,W" in one.blocks);
  slider.max = film.steps.length - 1;
  slider.value = Math.max(plateau, 0);
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
