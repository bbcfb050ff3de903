// Draws charts as plain SVG, again whenever the data changes. Text is inserted as text, never as
// markup, so that data from a checkpoint cannot inject code.

const SVG = "http://www.w3.org/2000/svg";
export const PHASES = ["cut", "state", "prepare", "log", "commit", "ack"];

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function millis(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10000 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value * 10) / 10} ms`;
}

export function clock(ms) {
  return ms ? new Date(ms).toLocaleTimeString([], { hour12: false }) : "–";
}

export function moment(ms) {
  if (!ms) return "–";
  const near = Math.abs(Date.now() - ms) < 43200000;
  return near ? clock(ms) : new Date(ms).toISOString().slice(0, 19).replace("T", " ");
}

export function ago(ms) {
  if (!ms) return "–";
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

function ticks(highest) {
  const rough = highest / 3;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) || power;
  const found = [];
  for (let at = 0; at <= highest + step * 0.001; at += step) found.push(at);
  if (found.at(-1) < highest) found.push(found.at(-1) + step);
  return found;
}

// series: [{name, kind, points: [[ms, value]]}]; all series have the same times.
export function lines(box, series, unit) {
  const times = series[0].points.map(([at]) => at);
  if (times.length < 2) {
    box.replaceChildren(el("p", { class: "empty" }, "No reports yet."));
    return;
  }
  const width = Math.max(240, box.clientWidth), height = 150;
  const left = 46, right = 8, top = 8, bottom = 20;
  const first = times[0], last = times.at(-1);
  const highest = Math.max(1, ...series.flatMap((each) => each.points.map(([, value]) => value ?? 0)));
  const steps = ticks(highest), peak = steps.at(-1);
  const x = (at) => left + ((at - first) / Math.max(1, last - first)) * (width - left - right);
  const y = (value) => height - bottom - (value / peak) * (height - top - bottom);
  const latest = series.map((each) => `${each.name} ${count(each.points.at(-1)[1])} ${unit}`).join(", ");
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": latest });
  for (const step of steps) {
    drawn.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(step), y2: y(step) }));
    drawn.append(svg("text", { x: left - 6, y: y(step) + 4, "text-anchor": "end" }, count(step)));
  }
  drawn.append(svg("text", { x: left, y: height - 4 }, clock(first)));
  drawn.append(svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, clock(last)));
  for (const each of series) {
    const path = each.points.filter(([, value]) => value !== null && value !== undefined)
      .map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    drawn.append(svg("path", { class: each.kind, d: path }));
  }
  const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const tip = el("p", { class: "tip", hidden: true });
  drawn.append(cursor);
  drawn.addEventListener("pointermove", (event) => {
    const at = (event.offsetX / drawn.clientWidth) * width;
    let near = 0;
    times.forEach((time, index) => { if (Math.abs(x(time) - at) < Math.abs(x(times[near]) - at)) near = index; });
    cursor.setAttribute("x1", x(times[near])); cursor.setAttribute("x2", x(times[near]));
    cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    tip.textContent = `${clock(times[near])}  ${series.map((each) => `${each.name} ${count(each.points[near][1])}`).join("  ")} ${unit}`;
    tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, box.clientWidth - tip.offsetWidth))}px`;
  });
  drawn.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
  const legend = el("ul", { class: "legend" }, ...series.map((each) => el("li", { class: each.kind.replace("l", "k") }, each.name)));
  box.replaceChildren(legend, drawn, tip);
}

// The newest epochs, one row each, divided into their phases.
export function timeline(box, epochs, chosen, choose) {
  const shown = epochs.slice(box.clientWidth < 500 ? -16 : -24);
  if (!shown.length) {
    box.replaceChildren(el("p", { class: "empty" }, "No epochs yet."));
    return;
  }
  const width = Math.max(260, box.clientWidth), row = 15, left = 58, right = 64, bottom = 18;
  const height = shown.length * row + bottom;
  const end = (epoch) => epoch.phases.reduce((most, [, begin, took]) => Math.max(most, begin + took), 1);
  const steps = ticks(Math.max(...shown.map(end))), peak = steps.at(-1);
  const x = (ms) => left + (ms / peak) * (width - left - right);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "presentation" });
  for (const step of steps) {
    drawn.append(svg("line", { class: "grid", x1: x(step), x2: x(step), y1: 0, y2: height - bottom }));
    drawn.append(svg("text", { x: x(step), y: height - 4, "text-anchor": "middle" }, `${count(step)} ms`));
  }
  shown.forEach((epoch, index) => {
    const group = svg("g", { class: "row", role: "option", id: `epoch-${epoch.epoch}`,
      "aria-selected": String(epoch.epoch === chosen), "aria-label": words(epoch) });
    group.append(svg("rect", { class: "back", x: 0, y: index * row, width, height: row }));
    group.append(svg("text", { x: left - 8, y: index * row + 11, "text-anchor": "end" }, String(epoch.epoch)));
    for (const [name, begin, took] of epoch.phases) {
      const length = x(begin + took) - x(begin);
      if (length < 0.4) continue;
      group.append(svg("rect", { class: `f${PHASES.indexOf(name) + 1}`, x: x(begin), y: index * row + 2, rx: 2,
        width: Math.max(1, length - (length > 4 ? 2 : 0)), height: row - 4 }));
    }
    group.append(svg("text", { x: width - right + 8, y: index * row + 11 }, millis(end(epoch))));
    group.addEventListener("click", () => choose(epoch.epoch));
    drawn.append(group);
  });
  box.replaceChildren(drawn);
  if (chosen !== null) box.setAttribute("aria-activedescendant", `epoch-${chosen}`);
}

export function words(epoch) {
  const parts = epoch.phases.map(([name, , took]) => `${name} ${millis(took)}`).join(", ");
  return `Epoch ${epoch.epoch} cut at ${clock(epoch.cut_ms)}: ${epoch.rows_in} rows in, ${epoch.rows_out} out; ${parts}`;
}

export function table(box, columns, rows) {
  const head = el("tr", {}, ...columns.map(([name, numeric]) => el("th", { scope: "col", class: numeric ? "num" : null }, name)));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, index) =>
    el("td", { class: columns[index][1] ? "num" : null }, cell instanceof Node ? cell : String(cell ?? "–")))));
  box.replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
}
