// The film: the blocks of one run at the step of the slider. Points tell their numbers; a click moves the slider.
const films = JSON.parse(document.getElementById("films").textContent);
const chosen = document.getElementById("chosen"), slider = document.getElementById("step");
const tip = document.getElementById("tip"), toggles = document.getElementById("toggles"), hidden = new Set();
const NS = "http://www.w3.org/2000/svg", W = 420, H = 210, LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 26;
const short = (x) => x === null ? "–" : Number(x).toPrecision(3).replaceAll("-", "−");
// A tick of an axis, without zeros that no one reads.
function round(x) {
  const exact = Number(x.toPrecision(12)), size = Math.abs(exact);
  return (size > 0 && (size < 1e-3 || size >= 1e5) ? exact.toExponential() : String(exact)).replaceAll("-", "−");
}
// A rounded share is never 0 % or 100 %.
const share = (x) =>
  x > 0 && x < 0.0005 ? "< 0.1 %" : x >= 0.9995 && x < 1 ? "> 99.9 %" : `${(100 * x).toFixed(1)} %`;

function draw(svg, name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  svg.append(node);
  return node;
}

// Steps on an axis of the logarithm of step + 1, which holds step 0.
const place = (film, step) => {
  const last = Math.max(2, ...film.accuracy.step, ...film.steps.map((one) => one.step), ...film.frequencies?.step ?? []);
  return LEFT + (W - LEFT - RIGHT) * Math.log1p(step) / Math.log1p(last);
};
const nearest = (film, steps, x) =>
  steps.reduce((best, step, i) => Math.abs(place(film, step) - x) < Math.abs(place(film, steps[best]) - x) ? i : best, 0);
const shown = (film) => Object.entries(film.colours).filter(([block]) => !hidden.has(block));

function frame(svg, ticks) {
  svg.replaceChildren();
  for (const [y, label] of ticks) {
    draw(svg, "line", {x1: LEFT, x2: W - RIGHT, y1: y, y2: y, class: "grid"});
    draw(svg, "text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, label);
  }
}

function axes(svg, film, ticks) {
  frame(svg, ticks);
  for (let step = 0, x; (x = place(film, step)) < W - RIGHT; step = 10 * step || 1)
    draw(svg, "text", {x, y: H - 8, "text-anchor": W - x < 30 ? "end" : "middle"}, step.toLocaleString("en"));
  for (const [i, event] of ["memorised", "grokked"].entries()) if (film[event] !== null) {
    const x = place(film, film[event]);
    draw(svg, "line", {x1: x, x2: x, y1: TOP, y2: H - BOTTOM, class: "axis", "stroke-dasharray": "4 3"});
    draw(svg, "text", {x: x - 4, y: TOP + 10 + 14 * i, "text-anchor": "end", class: "event"}, event);
  }
}

const cursor = (svg, x) => draw(svg, "line", {x1: x, x2: x, y1: TOP, y2: H - BOTTOM, class: "bound"});
const line = (svg, points, stroke, label) => {
  const d = points.map(([x, y, follows = true], i) => `${i && follows ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const path = draw(svg, "path", {d, fill: "none", stroke, "stroke-width": 2});
  draw(path, "title", {}, label);
  return path;
};

function accuracies(svg, film, step) {
  const y = (part) => TOP + (H - TOP - BOTTOM) * (1 - part);
  axes(svg, film, [[y(0), "0 %"], [y(0.5), "50 %"], [y(1), "100 %"]]);
  for (const [name, stroke] of [["train_accuracy", "#949494"], ["test_accuracy", "#029e73"]])
    line(svg, film.accuracy[name].flatMap((part, i) => part === null ? [] : [[place(film, film.accuracy.step[i]), y(part)]]),
      stroke, name.replace("_", " "));
  cursor(svg, place(film, step));
}

const powers_of_ten = (low, high) => Array.from({length: high - low + 1}, (_, i) => low + i);
const shown_power = (power) => power < 0 || power > 4 ? `1e${power}` : (10 ** power).toLocaleString("en");

// Numbers of the blocks on a log axis of powers of ten: values(b) are those of a block at a step.
function logs(svg, film, step, values, paint) {
  const rows = film.steps.flatMap((one, at) => shown(film).flatMap(([block]) => one.blocks[block] === undefined ? [] :
    values(one.blocks[block]).filter(({size}) => size > 0).map((found) => ({block, step: one.step, at, ...found}))));
  const powers = rows.map(({size}) => Math.log10(size));
  const low = Math.floor(Math.min(...powers, 0)), high = Math.ceil(Math.max(...powers, low + 1));
  const y = (size) => TOP + (H - TOP - BOTTOM) * (high - Math.log10(size)) / (high - low);
  axes(svg, film, powers_of_ten(low, high).map((power) => [y(10 ** power), shown_power(power)]));
  for (const [block, stroke] of shown(film))
    paint(block, stroke, rows.filter((row) => row.block === block).map((row) => ({...row, x: place(film, row.step), y: y(row.size)})), y);
  cursor(svg, place(film, step));
}

const dots = (svg, points, stroke, label) => {
  for (const {x, y, size} of points)
    draw(draw(svg, "circle", {cx: x, cy: y, r: 3, fill: stroke}), "title", {}, `${label}: ${short(size)}`);
};
// Points of neighbouring steps: a line over one without a number, such as 0 on a log axis, would claim one.
const joined = (svg, points, stroke, label) =>
  line(svg, points.map(({x, y, at}, i) => [x, y, i > 0 && at === points[i - 1].at + 1]), stroke, label);

// Both ends of each block's spectrum: λ_max, and the depth -λ_min where it is negative beyond rounding.
function ends(svg, film, step) {
  const both = (b) => [{size: b.highest, end: "λ_max"}, {size: -b.lowest, end: "depth"}]
    .filter(({size}) => size > 1e-12 * Math.max(Math.abs(b.lowest), Math.abs(b.highest)));
  logs(svg, film, step, both, (block, stroke, points) => {
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
  logs(svg, film, step, known, (block, stroke, points, y) => {
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
  logs(svg, film, step, (b) => b.kappa.map((size) => ({size})), (block, stroke, points, y) => {
    dots(svg, points, stroke, `κ of ${block}`);
    draw(svg, "line", {x1: LEFT, x2: W - RIGHT, y1: y(1), y2: y(1), class: "axis"});
  });
}

// All eigenvalues of the dense blocks at the slider's step, as the share below each value; the same axis at all steps.
const bent = (x, film) => Math.sign(x) * Math.log1p(Math.abs(x) / (1e-4 * film.largest));
const along = (x, film) => LEFT + (W - LEFT - RIGHT) * (bent(x, film) / bent(film.largest, film) + 1) / 2;
function spectrum(svg, film, step) {
  const y = (part) => TOP + (H - TOP - BOTTOM) * (1 - part);
  frame(svg, [[y(0), "0 %"], [y(0.5), "50 %"], [y(1), "100 %"]]);
  for (const x of [-1, -0.01, 0, 0.01, 1].map((part) => part * film.largest))
    draw(svg, "text", {x: along(x, film), y: H - 8, "text-anchor": x === film.largest ? "end" : "middle"}, short(x));
  draw(svg, "line", {x1: along(0, film), x2: along(0, film), y1: TOP, y2: H - BOTTOM, class: "axis"});
  const {blocks} = film.steps.find((one) => one.step === step);
  for (const [block, stroke] of shown(film)) if (blocks[block]?.spectrum?.length)
    line(svg, blocks[block].spectrum.map((x, i, all) => [along(x, film), y(i / (all.length - 1))]), stroke, `spectrum of ${block}`);
}

// Blocks shown whose smoothed density is known at a step, and the axis of eigenvalues that holds them and 0. Where all
// eigenvalues are within the smoothing's width of 0, the density would be the smoothing itself.
function smoothed(film, step) {
  const {blocks} = film.steps.find((one) => one.step === step);
  const known = shown(film).filter(([block]) => blocks[block]?.density)
    .map(([block, stroke]) => ({block, stroke, reach: Math.max(-blocks[block].lowest, blocks[block].highest), ...blocks[block].density}));
  const is_narrow = ({reach, width}) => reach <= width;
  const rows = known.filter((one) => !is_narrow(one)), narrow = known.filter(is_narrow);
  const ends = rows.flatMap(({x}) => [x[0], x.at(-1)]), low = Math.min(0, ...ends), high = Math.max(0, ...ends);
  const along = (x) => LEFT + (W - LEFT - RIGHT) * (x - low) / (high - low);
  return {rows, narrow, low, high, along};
}

// On a log axis over six decades from the highest; what lies below is not drawn.
function density(svg, film, step) {
  const {rows, narrow, low, high, along} = smoothed(film, step), within = narrow.map(({block}) => block).join(", ");
  if (!rows.length) {
    frame(svg, []);
    const why = narrow.length ? `within σ = ${short(narrow[0].width)} of 0: ${within}` : "no block shown has a density at this step";
    return void draw(svg, "text", {x: W / 2, y: H / 2, "text-anchor": "middle"}, why);
  }
  const top = Math.log10(Math.max(...rows.flatMap(({y, error}) => y.map((value, i) => value + error[i])))), floor = 10 ** (top - 6);
  const y = (value) => TOP + (H - TOP - BOTTOM) * (top - Math.log10(Math.max(value, floor))) / 6;
  frame(svg, powers_of_ten(Math.ceil(top - 6), Math.floor(top)).map((power) => [y(10 ** power), shown_power(power)]));
  const unit = [1, 2, 5, 10].map((times) => times * 10 ** Math.floor(Math.log10((high - low) / 6))).find((one) => (high - low) / one <= 6);
  for (let x, i = Math.ceil(low / unit); (x = i * unit) <= high; i++)
    draw(svg, "text", {x: along(x), y: H - 8, "text-anchor": W - along(x) < 30 ? "end" : "middle"}, round(x));
  draw(svg, "line", {x1: along(0), x2: along(0), y1: TOP, y2: H - BOTTOM, class: "axis"});
  for (const {block, stroke, x, y: values, error} of rows) {
    const side = (sign) => values.map((value, i) => `${along(x[i]).toFixed(1)} ${y(value + sign * error[i]).toFixed(1)}`);
    draw(svg, "path", {d: `M${[...side(1), ...side(-1).reverse()].join("L")}Z`, fill: stroke, "fill-opacity": 0.2});
    const is_drawn = (i) => [i - 1, i, i + 1].some((at) => values[at] > floor);
    line(svg, values.flatMap((value, i) => is_drawn(i) ? [[along(x[i]), y(value), is_drawn(i - 1)]] : []), stroke, `density of ${block}`);
  }
  // A Gaussian stands for each eigenvalue: left of 0 there may be none.
  const notes = [`smoothed by σ = ${short(rows[0].width)}`, "do not read an index from it", ...narrow.length ? [`within σ of 0: ${within}`] : []];
  for (const [i, told] of notes.entries())
    draw(svg, "text", {x: W - RIGHT, y: TOP + 10 + 14 * i, "text-anchor": "end", class: "event"}, told);
}

// Frequencies of the embedding in use at the last step, and what one in a hundred shares of chance reaches.
function frequencies(svg, film, step) {
  const {step: steps, chance, curves} = film.frequencies;
  const most = Math.max(...chance, ...curves.flatMap((curve) => curve.share), 1e-9);
  const y = (part) => TOP + (H - TOP - BOTTOM) * (1 - part / most);
  const drawn = (all) => all.flatMap((part, i) => part === null ? [] : [[place(film, steps[i]), y(part)]]);
  axes(svg, film, [[y(0), "0 %"], [y(most / 2), share(most / 2)], [y(most), share(most)]]);
  line(svg, drawn(chance), "#949494", "chance, p = 1 %").setAttribute("stroke-dasharray", "3 3");
  for (const curve of curves) line(svg, drawn(curve.share), curve.colour, `frequency ${curve.frequency}`);
  cursor(svg, place(film, step));
}

function circle(svg, film, step) {
  frame(svg, []);
  const at = film.circles[step];
  if (at === undefined) return void draw(svg, "text", {x: W / 2, y: H / 2, "text-anchor": "middle"}, "no frequency measured at this step");
  const n = film.numbers.length, half = (H - TOP - BOTTOM) / 2, reach = Math.max(...[...at.x, ...at.y].map(Math.abs)) || 1;
  const points = film.numbers.map((_, i) => [W / 2 + half * at.x[i] / reach, TOP + half - half * at.y[i] / reach]);
  const ring = [...points.keys()].sort((a, b) => at.frequency * a % n - at.frequency * b % n);
  line(svg, [...ring, ring[0]].map((i) => points[i]), "#949494", "neighbours on the circle").setAttribute("stroke-width", 0.7);
  film.numbers.forEach(({number, colour}, i) =>
    draw(draw(svg, "circle", {cx: points[i][0], cy: points[i][1], r: 3.5, fill: colour}), "title", {}, `${number}`));
  draw(svg, "text", {x: W / 2, y: H - 8, "text-anchor": "middle"}, `frequency ${at.frequency}, ${share(at.share)} of the variance, R² ${short(at.r2)}`);
}

// A number leads to the row of a CSV behind it, where the page names one.
function linked(text, b) {
  if (b.row === undefined) return text;
  const link = document.createElement("a");
  return Object.assign(link, {className: "n", href: b.row, title: b.title, textContent: text});
}

const counted = (b) => b.index !== null ? b.index : `${b.index_lower} to ${b.index_upper}`;
const each = (tell) => (film, x) => {
  const one = film.steps[nearest(film, film.steps.map(({step}) => step), x)];
  const lines = shown(film).filter(([block]) => one.blocks[block]).map(([block]) => `${block}: ${tell(one.blocks[block])}`);
  return [`step ${one.step.toLocaleString("en")}`, ...lines];
};
const charts = {
  accuracy: {paint: accuracies, tell: (film, x) => {
    const {step, ...parts} = film.accuracy, i = nearest(film, step, x);
    return [`step ${step[i].toLocaleString("en")}`, ...Object.entries(parts).filter(([, all]) => all.length).map(([name, all]) => `${name.replace("_", " ")}: ${short(all[i])}`)];
  }},
  spectrum: {paint: spectrum, tell: (film, x) => {
    const {blocks} = film.steps[slider.value], known = shown(film).filter(([block]) => blocks[block]?.spectrum?.length);
    const below = (all) => all.filter((value) => along(value, film) <= x).length / all.length;
    return ["share to the left", ...known.map(([block]) => `${block}: ${share(below(blocks[block].spectrum))}`)];
  }},
  density: {paint: density, tell: (film, pixel) => {
    const {rows, along} = smoothed(film, film.steps[slider.value].step);
    const away = (x) => Math.abs(along(x) - pixel), every = rows.flatMap(({x}) => x);
    if (!rows.length) return ["no density"];
    const at = every.reduce((best, x) => away(x) < away(best) ? x : best);
    const told = ({x, y, error}, i = x.indexOf(at)) => i < 0 ? "–" : short(y[i]) + (error[i] ? ` ± ${short(error[i])}` : "");
    return [`eigenvalue ${short(at)}`, ...rows.map((row) => `${row.block}: ${told(row)}`)];
  }},
  ends: {paint: ends, tell: each((b) => `${short(b.lowest)} to ${short(b.highest)}`)},
  index: {paint: index, tell: each(counted)},
  kappa: {paint: kappa, tell: each((b) => b.kappa.slice(0, 3).map(short).join(", ") || "–")},
  frequencies: {paint: frequencies, tell: (film, x) => {
    const {step, chance, curves} = film.frequencies, i = nearest(film, step, x);
    const parts = curves.map((curve) => `frequency ${curve.frequency}: ${share(curve.share[i])}`);
    return [`step ${step[i].toLocaleString("en")}`, ...parts, `chance, p = 1 %: ${share(chance[i])}`];
  }},
  circle: {paint: circle, tell: (film) => {
    const {step} = film.steps[slider.value], at = film.circles[step];
    return [`step ${step.toLocaleString("en")}`, at ? `frequency ${at.frequency}: ${share(at.share)}` : "no frequency"];
  }},
};
const without_steps = new Set(["spectrum", "density", "circle"]);
const is_known = {
  accuracy: (film) => film.accuracy.step.length > 0,
  spectrum: (film) => film.largest > 0,
  density: (film) => film.steps.some(({blocks}) => Object.values(blocks).some((b) => b.density)),
  kappa: (film) => film.steps.some(({blocks}) => Object.values(blocks).some((b) => b.kappa.length)),
  frequencies: (film) => film.frequencies !== undefined,
  circle: (film) => film.frequencies !== undefined,
};

function show() {
  const film = films[chosen.value], now = film.steps[slider.value];
  document.getElementById("now").textContent = `step ${now.step.toLocaleString("en")}`;
  document.getElementById("run").textContent = `${film.run}: ${film.setting}`;
  slider.setAttribute("aria-valuetext", `step ${now.step}`);
  for (const [name, chart] of Object.entries(charts)) {
    const svg = document.getElementById(name);
    if (!svg) continue;
    svg.closest("figure").hidden = is_known[name] !== undefined && !is_known[name](film);
    if (svg.closest("figure").hidden) continue;
    chart.paint(svg, film, now.step);
    svg.append(...svg.querySelectorAll(".event"));  // above the curves
  }
  const body = document.getElementById("blocks");
  body.replaceChildren();
  for (const [block] of shown(film)) if (now.blocks[block]) {
    const b = now.blocks[block], row = body.insertRow();
    const [star, bound] = [b.is_sure === false ? "*" : "", b.is_kappa_bound ? "≥ " : ""];
    for (const text of [short(b.lowest) + star, short(b.highest) + star, `${counted(b)} (${b.level})`, b.kappa.length ? bound + b.kappa.map(short).join(", ") : "–"])
      row.insertCell().append(linked(text, b));
    row.insertCell(0).textContent = block;
    row.cells[0].style.borderLeft = `6px solid ${film.colours[block]}`;
    row.cells[0].style.paddingLeft = ".5rem";
  }
}

function choose() {
  // It opens on the plateau.
  const film = films[chosen.value], plateau = Math.sqrt((film.memorised ?? 1) * (film.grokked ?? Infinity));
  slider.max = film.steps.length - 1;
  slider.value = film.steps.findLastIndex((one) => one.step <= plateau);
  toggles.replaceChildren(...Object.entries(film.colours).map(([block, colour]) => {
    const label = document.createElement("label"), box = document.createElement("input"), mark = document.createElement("span");
    Object.assign(box, {type: "checkbox", checked: !hidden.has(block), value: block});
    box.addEventListener("change", () => { hidden[box.checked ? "delete" : "add"](block); show(); });
    mark.textContent = "■";
    mark.style.color = colour;
    label.append(box, mark, ` ${block}`);
    return label;
  }));
  show();
}
chosen.addEventListener("change", choose);
slider.addEventListener("input", show);

for (const [name, chart] of Object.entries(charts)) {
  const svg = document.getElementById(name);
  if (!svg) continue;
  const at = (event) => W * (event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width;
  svg.addEventListener("pointermove", (event) => {
    tip.textContent = chart.tell(films[chosen.value], at(event)).join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(0, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4))}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  if (!without_steps.has(name)) svg.addEventListener("click", (event) => {
    const film = films[chosen.value];
    slider.value = nearest(film, film.steps.map(({step}) => step), at(event));
    show();
  });
}
choose();
