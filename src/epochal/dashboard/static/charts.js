// Draws charts as plain SVG, again whenever the data changes. The arrow keys move the cursor of a
// chart that has the focus.

import { bytes, clock, count, day, el, isSelected, millis, moment, span, whole } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
export const PHASES = ["cut", "state", "prepare", "log", "commit", "ack"];

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const DECIMAL = (rough) => { const power = 10 ** Math.floor(Math.log10(rough || 1)); return [1, 2, 5, 10].map((each) => each * power); };
const BINARY = (rough) => { const power = 1024 ** Math.floor(Math.log(Math.max(1, rough)) / Math.log(1024)); return [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].map((each) => each * power); };
const TIMES = [1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 432e6];
const TIME = (rough) => (rough < 1000 ? DECIMAL(rough) : [...TIMES, ...DECIMAL(rough / 864e5).map((each) => each * 864e5)]);

// The units of a chart: how to write a value, and which steps its axis may have.
export const UNITS = {
  rows: { text: count, steps: (rough) => DECIMAL(Math.max(rough, 1)) },
  time: { text: (ms) => (ms === 0 ? "0" : millis(ms)), steps: TIME },
  span: { text: (ms) => (ms === 0 ? "0" : span(ms)), steps: TIME },
  bytes: { text: bytes, steps: BINARY },
};

function ticks(lowest, highest, unit) {
  const rough = Math.max(highest - lowest, 1e-9) / 3;
  const step = unit.steps(rough).find((each) => each >= rough) ?? rough;
  const found = [];
  for (let at = Math.floor(lowest / step) * step; at < highest + step * 0.999; at += step) found.push(at);
  return found.length > 1 ? found : [...found, found[0] + step];
}

// series: [{name, kind, points: [[ms, value]], unit}]; all series have the same times. `options`:
// unit (of UNITS), marks (times of restarts), label (index to the text of a point), empty (text),
// legend (whether one series has a legend, too). A series may be `dashed`.
export function lines(box, series, options = {}) {
  const unit = UNITS[options.unit ?? "rows"];
  const times = series[0]?.points.map(([at]) => at) ?? [];
  const values = series.flatMap((each) => each.points.map(([, value]) => value)).filter((value) => value !== null && value !== undefined);
  if (times.length < 2 || !values.length) {
    box.replaceChildren(el("p", { class: "empty" }, options.empty ?? "No data yet."));
    box.removeAttribute("role"); box.removeAttribute("tabindex"); box.removeAttribute("aria-label");
    return;
  }
  const width = Math.max(240, box.clientWidth), height = 168;
  const steps = ticks(Math.min(0, ...values), Math.max(1, ...values), unit);
  const floor = steps[0], peak = steps.at(-1);
  const left = 14 + 7 * Math.max(...steps.map((each) => unit.text(each).length)), right = 10, top = 10, bottom = 22;
  const first = times[0], last = times.at(-1);
  const x = (at) => left + ((at - first) / Math.max(1, last - first)) * (width - left - right);
  const y = (value) => height - bottom - ((value - floor) / (peak - floor)) * (height - top - bottom);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  for (const step of steps) {
    drawn.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(step), y2: y(step) }));
    drawn.append(svg("text", { x: left - 6, y: y(step) + 4, "text-anchor": "end" }, unit.text(step)));
  }
  drawn.append(svg("text", { x: left, y: height - 5 }, moment(first)));
  drawn.append(svg("text", { x: width - right, y: height - 5, "text-anchor": "end" }, day(first) === day(last) ? clock(last) : moment(last)));
  series.forEach((each, index) => {
    const known = each.points.filter(([, value]) => value !== null && value !== undefined);
    if (!known.length) return;
    const path = known.map(([at, value], number) => `${number ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (index === 0 && series.length < 3) drawn.append(svg("path", { class: `area ${each.kind}`, d: `${path}L${x(known.at(-1)[0]).toFixed(1)} ${y(floor)}L${x(known[0][0]).toFixed(1)} ${y(floor)}Z` }));
    drawn.append(svg("path", { class: `line ${each.kind}${each.dashed ? " dashed" : ""}`, d: path }));
    if (known.length < 40) for (const [at, value] of known) drawn.append(svg("circle", { class: `dot ${each.kind}`, cx: x(at), cy: y(value), r: 2.5 }));
  });
  const marks = (options.marks ?? []).filter((at) => at >= first && at <= last);
  for (const at of marks) {
    const mark = svg("g", { class: "mark" }, svg("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom }), svg("path", { d: `M${x(at) - 5} ${top - 8}h10l-5 8z` }));
    mark.append(svg("title", {}, `Restart at ${clock(at)}`));
    drawn.append(mark);
  }
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  drawn.append(cursor);
  const tip = el("p", { class: "tip", "aria-live": "polite", hidden: true });
  const point = (index) => {
    box.cursor = index;
    const at = index === null ? null : times[Math.max(0, Math.min(times.length - 1, index))];
    tip.hidden = at === null;
    cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) return;
    cursor.setAttribute("x1", x(at)); cursor.setAttribute("x2", x(at));
    const shown = Math.max(0, Math.min(times.length - 1, index));
    tip.textContent = `${options.label ? `${options.label(shown)}, ` : ""}${moment(at)}: ${series.map((each) => `${each.name} ${unit.text(each.points[shown][1] ?? null)}`).join(", ")}`;
    tip.style.left = `${Math.max(0, Math.min((x(at) / width) * box.clientWidth + 10, box.clientWidth - tip.offsetWidth))}px`;
  };
  drawn.addEventListener("pointermove", (event) => {
    const at = (event.offsetX / drawn.clientWidth) * width;
    let near = 0;
    times.forEach((time, index) => { if (Math.abs(x(time) - at) < Math.abs(x(times[near]) - at)) near = index; });
    point(near);
  });
  drawn.addEventListener("pointerleave", () => point(null));
  box.tabIndex = 0;
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${series.map((each) => `${each.name} ${unit.text(each.points.findLast(([, value]) => value !== null && value !== undefined)?.[1])}`).join(", ")}${marks.length ? `; ${marks.length} restarts` : ""}`);
  box.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { event.preventDefault(); point(Math.max(0, Math.min(times.length - 1, (box.cursor ?? times.length - (by < 0 ? 0 : 1)) + by))); }
    else if (event.key === "Escape") point(null);
  };
  box.onblur = () => point(null);
  const legend = el("ul", { class: "legend" }, ...series.map((each) => el("li", { class: each.kind.replace("l", "k") }, each.name)));
  if (marks.length) legend.append(el("li", { class: "restart" }, "restart"));
  box.replaceChildren(...(series.length > 1 || marks.length || options.legend ? [legend] : []), drawn, tip);
  if (box.cursor !== null && box.cursor !== undefined && document.activeElement === box) point(box.cursor);
}

// The newest epochs, one row each, divided into their phases.
export function timeline(box, epochs, chosen, choose) {
  // The newest, or those around a chosen one that is older.
  const size = box.clientWidth < 500 ? 12 : 20, at = epochs.findIndex((each) => each.epoch === chosen);
  const last = at >= 0 && at < epochs.length - size ? Math.min(epochs.length, Math.max(size, at + size / 2)) : epochs.length;
  const begin = Math.max(0, last - size), shown = epochs.slice(begin, last);
  if (!shown.length) {
    box.replaceChildren(el("p", { class: "empty" }, "No epochs yet."));
    for (const name of ["role", "tabindex", "aria-activedescendant"]) box.removeAttribute(name);
    return;
  }
  const width = Math.max(260, box.clientWidth), row = 16, right = 70, bottom = 20;
  const left = 20 + 7 * whole(shown.at(-1).epoch).length;
  const height = shown.length * row + bottom;
  const end = (epoch) => epoch.phases.reduce((most, [, begin, took]) => Math.max(most, begin + took), 1);
  const steps = ticks(0, Math.max(...shown.map(end)), UNITS.time), peak = steps.at(-1);
  const x = (ms) => left + (ms / peak) * (width - left - right);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "presentation" });
  for (const step of steps) {
    drawn.append(svg("line", { class: "grid", x1: x(step), x2: x(step), y1: 0, y2: height - bottom }));
    drawn.append(svg("text", { x: x(step), y: height - 5, "text-anchor": "middle" }, UNITS.time.text(step)));
  }
  shown.forEach((epoch, index) => {
    const again = begin + index > 0 && epoch.attempt > epochs[begin + index - 1].attempt;
    const group = svg("g", { class: "row", role: "option", id: `epoch-${epoch.epoch}`, "data-epoch": epoch.epoch,
      "aria-selected": String(epoch.epoch === chosen) });
    group.append(svg("rect", { class: "back", x: 0, y: index * row, width, height: row, rx: 3 }));
    group.append(svg("text", { x: left - 8, y: index * row + 12, "text-anchor": "end" }, whole(epoch.epoch)));
    if (again) group.append(svg("path", { class: "again", d: `M2 ${index * row + 4}l7 4l-7 4z` }, svg("title", {}, "first after a restart")));
    for (const [name, begin, took] of epoch.phases) {
      const length = x(begin + took) - x(begin);
      if (length < 0.4) continue;
      group.append(svg("rect", { class: `f${PHASES.indexOf(name) + 1}`, x: x(begin), y: index * row + 3, rx: 2,
        width: Math.max(1, length - (length > 4 ? 1.5 : 0)), height: row - 6 }));
    }
    group.append(svg("text", { x: width - right + 8, y: index * row + 12 }, millis(Math.round(end(epoch)))));
    group.addEventListener("click", () => choose(epoch.epoch));
    drawn.append(group);
  });
  box.replaceChildren(drawn);
  box.setAttribute("role", "listbox");
  box.tabIndex = 0;
  if (chosen !== null) box.setAttribute("aria-activedescendant", `epoch-${chosen}`);
}

export function words(epoch) {
  const parts = epoch.phases.map(([name, , took]) => `${name} ${millis(took)}`).join(", ");
  return `Epoch ${epoch.epoch} cut at ${clock(epoch.cut_ms)}: ${whole(epoch.rows_in)} rows in, ${whole(epoch.rows_out)} out; ${parts}`;
}

export function table(box, columns, rows) {
  if (isSelected(box)) return;
  const head = el("tr", {}, ...columns.map(([name, numeric]) => el("th", { scope: "col", class: numeric ? "num" : null }, name)));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, index) =>
    el("td", { class: columns[index][1] ? "num" : null }, cell instanceof Node ? cell : String(cell ?? "–")))));
  box.replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
}
