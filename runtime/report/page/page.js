// Draws a run's document (runtime/report/report.h) and, where the page says from where, fetches newer ones.
// Long: a page fetches nothing, so that its script is one.
"use strict";
(() => {
const NONE = "–";
const MOST_DOTS = 24;      // closer ones would cover the line
const EVERY = 2000;        // ms between two documents
const PATIENCE = 10000;    // ms for an answer
const page = document.getElementById("page");

// ---- Words and figures.
const count = (n) => n.toLocaleString("en-US");

function figure(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  return size === 0 || (size >= 1e-3 && size < 1e6) ? value.toFixed(4) : value.toExponential(2);
}

function bytes(n) {
  let unit = 0;
  for (; n >= 999.5 && unit < 5; ++unit) n /= 1000;
  return (unit === 0 ? String(n) : n.toPrecision(3)) + " " + ["B", "kB", "MB", "GB", "TB", "PB"][unit];
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1e-3) return (seconds * 1e6).toFixed(0) + " µs";
  if (seconds < 1) return (seconds * 1e3).toPrecision(3) + " ms";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  const whole = Math.round(seconds);
  if (whole < 3600) return Math.floor(whole / 60) + " min " + whole % 60 + " s";
  if (whole < 86400) return Math.floor(whole / 3600) + " h " + Math.floor(whole / 60) % 60 + " min";
  return Math.floor(whole / 86400) + " d " + Math.floor(whole / 3600) % 24 + " h";
}

const named = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

// ---- Elements. Text only ever becomes text.
const SVG = (() => {
  const template = document.createElement("template");
  template.innerHTML = "<svg></svg>";
  return template.content.firstChild.namespaceURI;
})();

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// `draw(data)` where the data differ from what was drawn last: what stays keeps focus and selection.
const drawn = new Map();
function changed(what, data, draw) {
  const text = JSON.stringify(data) ?? "";
  if (drawn.get(what) === text) return;
  drawn.set(what, text);
  draw(data);
}

// A table that scrolls by itself where it is wider or longer than its place.
function scrolling(name, table) {
  table.setAttribute("aria-label", name);
  return html("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": name + ", scrolling"}, table);
}

// ---- Charts.
// Round numbers (1, 2 or 5 times a power of ten apart) that span [low, high]: at least two, about `wanted`.
function ticksOf(low, high, wanted) {
  if (!(high > low)) {
    const room = low === 0 ? 1 : Math.abs(low) * 0.1;
    low -= room;
    high += room;
  }
  const rough = (high - low) / Math.max(1, wanted - 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const lead = rough / power;
  const spacing = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  const ticks = [];
  for (let k = Math.floor(low / spacing + 1e-9); ; ++k) {
    ticks.push(k * spacing);
    if (ticks.length >= 2 && k * spacing >= high - spacing * 1e-9) return ticks;
  }
}

// No more decimals than the spacing needs.
function tickText(value, spacing) {
  const decimals = Math.min(9, Math.max(0, Math.ceil(-Math.log10(spacing) - 1e-9)));
  return (Math.abs(value) < spacing * 1e-6 ? 0 : value).toFixed(decimals);
}

function pointOf(p) {
  if (p.length === 2) return {first: p[0], x: p[0], value: p[1], least: p[1], largest: p[1]};
  return {first: p[0], x: p[1], value: p[2], least: p[3], largest: p[4]};
}

class ChartView {
  constructor() {
    this.title = html("span");
    this.legend = html("span", {class: "legend"});
    this.plot = svg("g");
    this.cursor = svg("g", {class: "at", tabindex: "0", role: "slider", "aria-orientation": "horizontal"});
    this.svg = svg("svg", {class: "chart", role: "group"}, this.plot, this.cursor);
    this.figure = html("figure", {class: "card"}, html("figcaption", {}, this.title, this.legend), this.svg);
    this.hovered = false;
    this.at = null;  // where on the x axis the tip stands; null: nobody has moved it
    this.cursor.addEventListener("focus", () => this.show());
    this.cursor.addEventListener("blur", () => this.hide());
    this.cursor.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.hide());
    new ResizeObserver(() => {
      if (this.chart && this.figure.clientWidth !== this.measured) this.draw();
    }).observe(this.figure);
  }

  update(chart) {
    this.chart = chart;
    this.series = chart.series.map((s, i) => ({name: s.name, style: "s" + i, points: s.points.map(pointOf)}));
    this.places = this.placesOf();
    this.draw();
  }

  text(value) { return this.chart.values === "seconds" ? duration(value) : figure(value); }

  // What is said at each place of the x axis, in its order.
  placesOf() {
    const places = new Map();
    for (const series of this.series) {
      for (const p of series.points) {
        if (p.value === null) continue;
        if (!places.has(p.x)) {
          const unit = this.chart.unit;
          places.set(p.x, {x: p.x, values: [], lines: [
            p.first < p.x ? `${unit}s ${p.first} to ${p.x}` : `${unit} ${p.x}`]});
        }
        const place = places.get(p.x);
        const spread = p.largest > p.least ? ` (${this.text(p.least)} to ${this.text(p.largest)})` : "";
        place.lines.push(`${series.name} ${this.text(p.value)}${spread}`);
        place.values.push({style: series.style, value: p.value});
      }
    }
    return [...places.values()].sort((a, b) => a.x - b.x);
  }

  summary() {
    const of = this.series.map((series) => {
      const points = series.points.filter((p) => p.value !== null);
      if (points.length === 0) return `${series.name}: nothing yet`;
      const last = points[points.length - 1];
      return `${series.name} from ${this.text(points[0].value)} to ${this.text(last.value)}`;
    });
    return `${this.label()}: ${of.join("; ")}`;
  }

  label() {
    const {title, unit} = this.chart;
    return title.includes(unit) ? title : `${title}, by ${unit}`;
  }

  // A first step that loads its program, or one that waits for a disk, takes a hundred times as long as the others, whose
  // times nobody could then tell apart: the axis of times ends at three times what 19 in 20 places stay below.
  cutOff() {
    if (this.chart.values !== "seconds") return null;
    const means = this.series.flatMap((s) => s.points.map((p) => p.value)).filter((v) => v !== null).sort((a, b) => a - b);
    const largest = Math.max(...this.series.flatMap((s) => s.points.map((p) => p.largest ?? 0)));
    const most = 3 * (means[Math.floor(0.95 * (means.length - 1))] ?? 0);
    return means.length >= 8 && most > 0 && largest > most ? most : null;
  }

  draw() {
    const {chart, series} = this;
    this.measured = this.figure.clientWidth;
    const style = getComputedStyle(this.figure);
    const inner = this.measured - parseFloat(style.paddingLeft || 0) - parseFloat(style.paddingRight || 0);
    const width = Math.max(240, inner || 528);
    const height = Math.round(Math.min(340, Math.max(220, width * 0.6)));
    this.title.textContent = chart.title;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("aria-label", this.summary());
    this.cursor.setAttribute("aria-label", this.label());
    this.figure.setAttribute("aria-label", chart.title);

    let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
    for (const {points} of series) {
      for (const p of points) {
        first = Math.min(first, p.first);
        last = Math.max(last, p.x);
        if (p.value === null) continue;
        low = Math.min(low, p.least);
        high = Math.max(high, p.largest);
      }
    }
    if (low > high) low = high = 0;
    if (first > last) first = last = 1;
    if (chart.fromZero) low = Math.min(low, 0);
    const cut = this.cutOff();
    if (cut !== null) high = Math.min(high, cut);
    // Of times, the unit is the same on the whole axis.
    const scale = chart.values !== "seconds" ? 1 : high < 1e-3 ? 1e6 : high < 1 ? 1e3 : 1;
    const yTicks = ticksOf(low * scale, high * scale, height < 260 ? 5 : 6);
    const grouped = series.some((s) => s.points.some((p) => p.largest > p.least));
    this.legend.replaceChildren(...series.map((s) => html("span", {},
      svg("svg", {viewBox: "0 0 24 10", "aria-hidden": "true"}, svg("path", {class: "line " + s.style, d: "M2 5H22"})), s.name)),
      ...(grouped ? [html("span", {}, "mean, in a band from least to largest")] : []),
      ...(cut !== null ? [html("span", {}, `cut off above ${this.text(yTicks[yTicks.length - 1] / scale)}`)] : []));
    const texts = yTicks.map((tick) => tickText(tick, yTicks[1] - yTicks[0]));
    const left = 14 + 7 * Math.max(...texts.map((text) => text.length)), right = 12, top = 14, bottom = 44, inside = 14;
    const room = last > first ? 0 : 1;  // one point stands in the middle
    this.toX = (x) => left + inside + (x - first + room) / (last - first + 2 * room) * (width - left - right - 2 * inside);
    const base = yTicks[0], span = yTicks[yTicks.length - 1] - base;
    this.toY = (y) => Math.max(top, height - bottom - (y * scale - base) / span * (height - bottom - top));
    this.box = {left, top, width, height, right: width - right, bottom: height - bottom};

    const parts = [svg("rect", {class: "frame", x: left + inside, y: top, width: width - left - right - 2 * inside,
                                height: height - bottom - top})];
    yTicks.forEach((tick, i) => {
      const y = this.toY(tick / scale);
      parts.push(svg("line", {class: "grid", x1: left, y1: y, x2: width - right, y2: y}),
                 svg("text", {x: left - 8, y: y + 4, "text-anchor": "end"}, texts[i]));
    });
    parts.push(svg("line", {class: "axis", x1: left, y1: height - bottom, x2: width - right, y2: height - bottom}));
    // Epochs and steps are counted: no tick between two of them. The first has its own, where the next leaves it room.
    const mark = (x) => parts.push(svg("text", {x: this.toX(x), y: height - bottom + 18, "text-anchor": "middle"}, count(x)));
    const round = last > first ? ticksOf(first, last, Math.max(3, Math.floor(width / 75))) : [first];
    const marks = round.filter((x) => x >= first && x <= last && Number.isInteger(x));
    const each = round.length > 1 ? round[1] - round[0] : 1;
    if (marks.length === 0 || marks[0] - first >= 0.6 * each) mark(first);
    marks.forEach(mark);
    const unit = {1: "s", 1e3: "ms", 1e6: "µs"}[scale];
    parts.push(svg("text", {x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle"},
                   chart.unit + (chart.values === "seconds" ? ` (time in ${unit})` : "")));
    for (const s of series) this.drawSeries(parts, s);
    this.plot.replaceChildren(...parts);
    this.drawTip();
  }

  drawSeries(parts, {points, style}) {
    const at = (x, y) => `${this.toX(x).toFixed(1)} ${this.toY(y).toFixed(1)}`;
    let line = "", band = "";
    for (let i = 0; i < points.length;) {
      if (points[i].value === null) {
        ++i;
        continue;
      }
      let end = i, wide = false;  // of what lies between two gaps
      for (; end < points.length && points[end].value !== null; ++end) {
        wide ||= points[end].largest > points[end].least;
        line += (end === i ? "M" : "L") + at(points[end].x, points[end].value);
      }
      if (end === i + 1) line += "h0";  // one point by itself is seen too: its line has round ends
      if (wide) {
        const run = points.slice(i, end);
        band += "M" + run.map((p) => at(p.x, p.largest)).join("L") + "L" +
                run.reverse().map((p) => at(p.x, p.least)).join("L") + "Z";
      }
      i = end;
    }
    if (band) parts.push(svg("path", {class: "band " + style, d: band}));
    const many = points.length > MOST_DOTS;
    if (line) parts.push(svg("path", {class: `line ${style}${many ? " many" : ""}`, d: line}));
    if (many) return;
    for (const p of points) {
      if (p.value !== null) parts.push(svg("circle", {class: "dot " + style, cx: this.toX(p.x), cy: this.toY(p.value), r: 4}));
    }
  }

  // The place nearest to where the tip stands; the last one where nobody has moved it.
  index() {
    if (this.at === null) return this.places.length - 1;
    let best = 0;
    this.places.forEach((place, i) => {
      if (Math.abs(place.x - this.at) < Math.abs(this.places[best].x - this.at)) best = i;
    });
    return best;
  }

  drawTip() {
    const {box, places, cursor} = this;
    const at = this.index();
    const place = places[at];
    cursor.setAttribute("aria-valuemin", 0);
    cursor.setAttribute("aria-valuemax", Math.max(0, places.length - 1));
    cursor.setAttribute("aria-valuenow", Math.max(0, at));
    cursor.setAttribute("aria-valuetext", place ? place.lines.join("; ") : "nothing yet");
    const frame = svg("rect", {class: "place", x: 1, y: 1, width: box.width - 2, height: box.height - 2, rx: 6});
    if (!place) return cursor.replaceChildren(frame);
    const x = this.toX(place.x);
    const wide = Math.min(box.width - 4, 16 + 6.6 * Math.max(...place.lines.map((line) => line.length)));
    const left = x + 10 + wide < box.width - 2 ? x + 10 : Math.max(2, x - 10 - wide);
    cursor.replaceChildren(frame, svg("g", {class: "tip"},
      svg("line", {class: "guide", x1: x, y1: box.top, x2: x, y2: box.bottom}),
      ...place.values.map((v) => svg("circle", {class: "dot " + v.style, cx: x, cy: this.toY(v.value), r: 4})),
      svg("rect", {x: left, y: box.top + 4, width: wide, height: 10 + 16 * place.lines.length, rx: 4}),
      ...place.lines.map((line, i) => svg("text", {x: left + 8, y: box.top + 21 + 16 * i}, line))));
  }

  show() { this.cursor.classList.add("shown"); }
  hide() {
    if (document.activeElement !== this.cursor) this.cursor.classList.remove("shown");
  }

  point(event) {
    if (this.places.length === 0) return;
    const area = this.svg.getBoundingClientRect();
    const x = (event.clientX - area.left) * this.box.width / area.width;
    const nearest = this.places.reduce((a, b) => Math.abs(this.toX(b.x) - x) < Math.abs(this.toX(a.x) - x) ? b : a);
    this.at = nearest.x;
    this.drawTip();
    this.show();
  }

  key(event) {
    const at = this.index(), end = this.places.length - 1;
    const to = {ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10,
                Home: 0, End: end}[event.key];
    if (event.key === "Escape") this.cursor.classList.remove("shown");
    if (to === undefined || end < 0) return;
    event.preventDefault();
    this.at = this.places[Math.min(end, Math.max(0, to))].x;
    this.drawTip();
    this.show();
  }
}

// ---- The parts of the page.
const parts = {
  title: html("h1"), subtitle: html("p", {class: "subtitle"}),
  state: html("section", {class: "card", "aria-label": "State", hidden: ""}),
  badge: html("span", {class: "badge", role: "status"}), words: html("span"),
  why: html("p", {class: "why"}), bar: html("div", {class: "bar", role: "progressbar", "aria-label": "steps done", "aria-valuemin": "0"},
                                           html("div")),
  tiles: html("dl", {class: "tiles"}),
  charts: html("div", {class: "charts"}),
  plan: html("section", {class: "card", "aria-label": "Mesh, collectives and layouts", hidden: ""}),
  facts: html("section", {class: "card", "aria-label": "Run", hidden: ""}),
  epochs: html("section", {class: "card", "aria-label": "Epochs"}),
};
parts.state.append(html("div", {class: "state"}, parts.badge, parts.words), parts.why, parts.bar, parts.tiles);
page.append(html("header", {}, parts.title, parts.subtitle), parts.state, parts.charts, parts.plan, parts.facts, parts.epochs);

function drawState(state, silent) {
  parts.state.hidden = !state;
  if (!state) return;
  const over = ["ended", "stopped", "failed"].includes(state.phase);
  const badge = silent && !over ? "no answer" : state.phase;
  parts.badge.className = "badge " + (badge === state.phase ? badge : "silent");
  if (parts.badge.textContent !== badge) parts.badge.textContent = badge;
  const words = [];
  if (state.epoch !== undefined) words.push(`epoch ${state.epoch}` + (state.epochs !== undefined ? ` of ${state.epochs}` : ""));
  if (state.step !== undefined) words.push(`step ${count(state.step)}` + (state.steps !== undefined ? ` of ${count(state.steps)}` : ""));
  const going = state.phase === "training" && !silent;
  if (going && state.etaSeconds !== undefined) words.push(`${duration(state.etaSeconds)} left`);
  parts.words.replaceChildren(...words.map((word, i) => i === 0 ? html("b", {}, word) : " · " + word));
  const why = [state.why, !silent ? "" : (over ? "The process has gone" :
    `No answer for ${duration(silent)}: the process has ended or cannot be reached. This is what it said last`) +
    "; what it left is in its output folder, report.html among it."].filter(Boolean).join("\n");
  parts.why.textContent = why;
  parts.why.hidden = !why;
  parts.bar.hidden = !(state.steps > 0) || state.step === undefined;
  if (!parts.bar.hidden) {
    const share = Math.min(100, 100 * state.step / state.steps);
    parts.bar.firstChild.style.width = share + "%";
    for (const [name, value] of [["max", state.steps], ["now", state.step], ["text", `${share.toFixed(1)} %`]]) {
      parts.bar.setAttribute("aria-value" + name, value);
    }
  }
  const order = (name) => name === "loss" ? 0 : name === "accuracy" ? 1 : 2;
  const tiles = Object.keys(state.figures).sort((a, b) => order(a) - order(b) || (a < b ? -1 : 1))
                    .map((name) => [named(name) + " of the last step", figure(state.figures[name])]);
  if (state.stepSeconds !== undefined) tiles.push([over ? "Step time, mean" : "Step time", duration(state.stepSeconds)]);
  if (state.examplesPerSecond !== undefined) tiles.push([over ? "Examples per second, mean" : "Examples per second", count(Math.round(state.examplesPerSecond))]);
  if (going && state.etaSeconds !== undefined) tiles.push(["Time left", duration(state.etaSeconds)]);
  if (state.elapsedSeconds !== undefined) tiles.push([over ? "Time" : "Time so far", duration(state.elapsedSeconds)]);
  parts.tiles.replaceChildren(...tiles.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
}

const views = new Map();  // of charts, by title
function drawCharts(charts) {
  charts.forEach((chart, i) => {
    let view = views.get(chart.title);
    if (!view) views.set(chart.title, view = new ChartView());
    if (parts.charts.children[i] !== view.figure) parts.charts.insertBefore(view.figure, parts.charts.children[i] ?? null);
    changed("chart " + chart.title, chart, () => view.update(chart));
  });
  while (parts.charts.children.length > charts.length) {
    const last = parts.charts.lastChild;
    for (const [title, view] of views) {
      if (view.figure !== last) continue;
      views.delete(title);
      drawn.delete("chart " + title);
    }
    last.remove();
  }
}

function drawFacts(facts) {
  parts.facts.hidden = facts.length === 0;
  parts.facts.replaceChildren(html("h2", {}, "Run"), html("table", {class: "facts", "aria-label": "Run"}, html("tbody", {},
    ...facts.map(([name, what]) => html("tr", {}, html("th", {scope: "row"}, name), html("td", {}, what))))));
}

function drawEpochs(epochs) {
  if (epochs.count === 0) return parts.epochs.replaceChildren("No epoch has ended yet.");
  const head = html("tr", {}, ...["epoch", ...epochs.columns, "seconds"].map((name) => html("th", {scope: "col"}, name)));
  const rows = epochs.rows.map((row) => html("tr", row.best ? {class: "best"} : {},
    html("th", {scope: "row"}, count(row.epoch), ...(row.best ? [" ", html("small", {}, "best")] : [])),
    ...row.figures.map((value) => html("td", {}, figure(value))),
    html("td", {}, row.seconds === null ? NONE : row.seconds.toFixed(2))));
  const table = html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows));
  const note = epochs.every > 1 ? [html("p", {class: "note"},
    `One in ${epochs.every} of ${count(epochs.count)} epochs, the best and the last.`)] : [];
  parts.epochs.replaceChildren(html("h2", {}, "Epochs"), scrolling("Figures of the epochs", table), ...note);
}

// ---- Mesh, layouts, collectives.
let picked = null;  // the name of the variable whose shards the mesh shows
const cells = [];   // of the mesh, by rank

function coordinates(plan, rank) {
  const at = {};
  for (const [name, size] of [...plan.axes].reverse()) {
    at[name] = rank % size;
    rank = Math.floor(rank / size);
  }
  return at;
}

// How many parts each dimension has.
function partsOf(plan, variable) {
  const sizes = Object.fromEntries(plan.axes);
  return variable.split.map((axes) => axes.reduce((n, axis) => n * sizes[axis], 1));
}

// Which shard lies on a device: an index in each dimension that is split; and its number among all.
function shardOf(plan, variable, rank) {
  const at = coordinates(plan, rank), sizes = Object.fromEntries(plan.axes);
  let number = 0;
  const indices = [];
  for (const axes of variable.split) {
    let index = 0, n = 1;
    for (const axis of axes) {
      index = index * sizes[axis] + at[axis];
      n *= sizes[axis];
    }
    number = number * n + index;
    if (n > 1) indices.push(index);
  }
  return {number, text: indices.length === 0 ? "whole" : "shard " + indices.join(",")};
}

const hue = (number) => (210 + number * 137.5) % 360;

function showShards(plan) {
  const variable = [...plan.inputs, ...plan.variables].find((v) => v.name === picked);
  cells.forEach((cell, rank) => {
    const said = cell.querySelector(".said");
    cell.classList.toggle("part", !!variable);
    if (!variable) {
      said.textContent = cell.dataset.said;
      return;
    }
    const shard = shardOf(plan, variable, rank);
    cell.style.setProperty("--hue", hue(shard.number));
    said.textContent = shard.text;
  });
}

// A picture of how the tensor is cut: rows by its first dimension, columns by the others.
function picture(plan, variable) {
  const n = partsOf(plan, variable);
  const rows = n.length > 1 ? n[0] : 1;
  const columns = n.length > 1 ? n.slice(1).reduce((a, b) => a * b, 1) : n[0] ?? 1;
  const some = (k) => Math.min(k, 8);
  const out = svg("svg", {class: "picture", viewBox: "0 0 48 26", "aria-hidden": "true"});
  const w = 46 / some(columns), h = 24 / some(rows);
  for (let r = 0; r < some(rows); ++r) {
    for (let c = 0; c < some(columns); ++c) {
      const part = svg("rect", {x: 1 + c * w, y: 1 + r * h, width: w, height: h});
      if (rows * columns > 1) part.setAttribute("style", `fill: hsl(${hue(r * columns + c)} 70% var(--part))`);
      out.append(part);
    }
  }
  return out;
}

function drawMesh(plan) {
  cells.length = 0;
  const cell = (tag, rank, said) => {
    const out = html(tag, {"data-said": said}, plan.devices[rank], html("span", {class: "said"}, said));
    cells.push(out);
    return out;
  };
  if (plan.groups.length > 0) {
    return plan.groups.flatMap(([kind, names, n]) => [html("h3", {}, `${count(n)} ${kind}`),
      html("ul", {class: "devices"}, ...names.map((name) => html("li", {}, name)))]);
  }
  const name = plan.axes.map(([axis, size]) => `${axis}=${size}`).join(",");
  const out = [html("p", {class: "note"}, plan.axes.length === 0 ? "One device." :
    `${name}: ${count(plan.deviceCount)} devices` + (plan.devices.length < plan.deviceCount ?
    `, the first ${plan.devices.length} of which are drawn` : "") + ".")];
  if (plan.axes.length <= 1) {
    out.push(html("ul", {class: "devices"}, ...plan.devices.map((_, rank) =>
      cell("li", rank, plan.axes.length === 1 ? `${plan.axes[0][0]} ${rank}` : "all of it"))));
    return out;
  }
  // The last axis goes across, the one before it down; each place of the others has a table.
  const outer = plan.axes.slice(0, -2), [[down, rows], [across, columns]] = plan.axes.slice(-2);
  const tables = [];
  for (let begin = 0; begin < plan.devices.length; begin += rows * columns) {
    const at = coordinates(plan, begin);
    const where = outer.map(([axis]) => `${axis} ${at[axis]}`).join(", ");
    const shown = Math.min(columns, plan.devices.length - begin);
    const head = html("tr", {}, html("td", {class: "corner"}),
      ...Array.from({length: shown}, (_, c) => html("th", {scope: "col"}, `${across} ${c}`)));
    const body = [];
    for (let r = 0; r < rows && begin + r * columns < plan.devices.length; ++r) {
      const row = html("tr", {}, html("th", {scope: "row"}, `${down} ${r}`));
      for (let c = 0; c < columns && begin + r * columns + c < plan.devices.length; ++c) {
        const rank = begin + r * columns + c;
        row.append(cell("td", rank, `rank ${rank}`));
      }
      body.push(row);
    }
    tables.push(html("table", {class: "mesh", "aria-label": "Mesh" + (where ? ", " + where : "")},
                     ...(where ? [html("caption", {}, where)] : []), html("thead", {}, head), html("tbody", {}, ...body)));
  }
  out.push(html("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Mesh, scrolling"},
                html("div", {class: "meshes"}, ...tables)));
  return out;
}

function drawCollectives(plan) {
  if (plan.collectives.length === 0) return [html("p", {class: "note"}, "None: a step moves nothing between devices.")];
  const most = Math.max(1, ...plan.collectives.map((c) => c.bytes));
  const all = plan.collectives.reduce((sum, c) => ({count: sum.count + c.count, bytes: sum.bytes + c.bytes}), {count: 0, bytes: 0});
  const share = (n) => {
    const bar = html("div");
    bar.style.width = 100 * n / most + "%";
    return html("td", {class: "share", "aria-hidden": "true"}, bar);
  };
  const row = (kind, axes, n, sent, more, attributes = {}) => html("tr", attributes, html("th", {scope: "row"}, kind),
    html("td", {class: "text"}, axes), html("td", {}, count(n)), html("td", {}, count(sent)), html("td", {}, bytes(sent)), more);
  const head = ["collective", "over", "times", "bytes", "", ""].map((text, i) =>
    html("th", {scope: "col", ...(i === 1 ? {class: "text"} : {})}, text));
  return [scrolling("Collectives", html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {},
    ...plan.collectives.map((c) => row(c.kind, c.axes, c.count, c.bytes, share(c.bytes))),
    row("in all", "", all.count, all.bytes, html("td", {"aria-hidden": "true"}), {class: "all"}))))];
}

function drawLayouts(plan) {
  const meshed = plan.axes.length > 0;
  const row = (v) => {
    const copies = meshed ? Math.round(plan.deviceCount / partsOf(plan, v).reduce((a, b) => a * b, 1)) : 1;
    const name = meshed ? html("button", {type: "button", "aria-pressed": String(v.name === picked)}, v.name) : v.name;
    if (meshed) {
      name.addEventListener("click", () => {
        picked = picked === v.name ? null : v.name;
        for (const other of parts.plan.querySelectorAll("button")) {
          other.setAttribute("aria-pressed", String(other.textContent === picked));
        }
        showShards(plan);
      });
    }
    return html("tr", {}, html("th", {scope: "row"}, name), html("td", {class: "text"}, v.type),
      html("td", {class: "text"}, v.layout),
      ...(meshed ? [html("td", {}, picture(plan, v)), html("td", {class: "text"}, v.shard)] : []),
      html("td", {}, bytes(v.bytes)), ...(meshed ? [html("td", {}, count(copies))] : []));
  };
  const columns = meshed ? ["name", "type", "layout", "cut", "on a device", "bytes", "copies"]
                         : ["name", "type", "where", "bytes"];
  const group = (name, of) => of.length === 0 ? [] :
    [html("tr", {class: "group"}, html("th", {scope: "rowgroup", colspan: columns.length}, name)), ...of.map(row)];
  const text = new Set(["type", "layout", "cut", "on a device", "where"]);
  const head = columns.map((name) => html("th", {scope: "col", ...(text.has(name) ? {class: "text"} : {})}, name));
  const more = plan.variableCount - plan.variables.length;
  return [scrolling("Layouts", html("table", {}, html("thead", {}, html("tr", {}, ...head)),
      html("tbody", {}, ...group("inputs", plan.inputs), ...group("variables", plan.variables)))),
    ...(more > 0 ? [html("p", {class: "note"}, `And ${count(more)} more variables: plan.txt has them all.`)] : []),
    ...(meshed ? [html("p", {class: "note"}, "A name shows in the mesh which shard lies on which device.")] : [])];
}

function drawPlan(plan) {
  parts.plan.hidden = !plan;
  if (!plan) return;
  const memory = plan.peakBytes > 0 ? [html("p", {class: "note"}, `Memory of a device: ${bytes(plan.peakBytes)}` +
    (plan.memory.length ? " = " + plan.memory.map(([what, n]) => `${what} ${bytes(n)}`).join(" + ") : "") + ".")] : [];
  const note = plan.note ? [html("p", {class: "note"}, plan.note)] : [];
  parts.plan.replaceChildren(html("h2", {}, plan.groups.length > 0 ? "Processes" : "Mesh"), ...drawMesh(plan), ...memory,
    ...(plan.groups.length > 0 ? [] : [html("h3", {}, "Collectives of a step, sent by one device"), ...drawCollectives(plan)]), ...note,
    ...(plan.inputs.length + plan.variables.length > 0 ? [html("h3", {}, plan.groups.length > 0 ? "Where the variables lie" : "Layouts"), ...drawLayouts(plan)] : []));
  showShards(plan);
}

function draw(run) {
  changed("title", [run.title, run.subtitle], () => {
    parts.title.textContent = run.title;
    parts.subtitle.textContent = run.subtitle;
  });
  const state = run.state;
  document.title = (state && state.epochs !== undefined ? `${state.epoch ?? 0}/${state.epochs} ` : "") + run.title;
  changed("state", [state], () => drawState(state, 0));
  drawCharts(run.charts);
  changed("plan", run.plan, drawPlan);
  changed("facts", run.facts, drawFacts);
  changed("epochs", run.epochs, drawEpochs);
}

let run = JSON.parse(document.getElementById("run").textContent);
draw(run);

// ---- Newer documents.
if (page.dataset.live) {
  // Of "…/jobs/mnist" and of "…/jobs/mnist/" the same one: the page may be seen through a proxy, below any path.
  const path = location.pathname;
  const address = (path.endsWith("/") ? "" : path.slice(path.lastIndexOf("/") + 1) + "/") + page.dataset.live;
  let answered = performance.now();
  let timer = 0;
  const look = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const answer = await fetch(address, {cache: "no-store", signal: AbortSignal.timeout(PATIENCE)});
      if (!answer.ok) throw new Error(String(answer.status));
      run = await answer.json();
      answered = performance.now();
      draw(run);
    } catch (error) {
      drawn.delete("state");
      drawState(run.state, (performance.now() - answered) / 1000);
    }
    clearTimeout(timer);
    timer = setTimeout(look, EVERY);
  };
  document.addEventListener("visibilitychange", look);
  timer = setTimeout(look, EVERY);
}
})();
