// Line charts without a library: one <div class="plot" data-chart="..."> each, drawn from the page's own JSON.
// chart = {x, y, logX, logY, series: [{name, points: [[x, y, note?]], marks: [[x, y, text]]}], limit: {y, text}}
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SIZE = {width: 720, height: 340, left: 58, right: 16, top: 16, bottom: 44};
  // One unit is one pixel, so that text keeps its size on a phone.
  const fit = (holder) => {
    SIZE.width = Math.max(280, holder.clientWidth);
    SIZE.height = Math.max(240, Math.min(360, 0.6 * SIZE.width));
  };

  const element = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  };
  const COLORS = 6;  // from the seventh series on the same again, dashed
  const color = (number) => `var(--series-${(number % COLORS) + 1})`;
  const isDashed = (number) => number >= COLORS;
  const shown = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1);
    return Number(value.toPrecision(4)).toLocaleString("en");
  };

  function linearTicks(low, high) {
    const rough = (high - low) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
    return ticks;
  }
  function logTicks(low, high) {
    const ticks = [];
    const wide = Math.log10(high / low) > 2.5;
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      for (const factor of wide ? [1] : [1, 2, 5]) ticks.push(factor * 10 ** power);
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  }
  function scale(values, log, from, to) {
    let low = Math.min(...values), high = Math.max(...values);
    // From zero, unless that would leave half of the picture empty: accuracies of 85 to 92 are told apart from 85 on.
    if (!log && low < high / 2) low = Math.min(0, low);
    if (low === high) { low = log ? low / 2 : low - 1; high = log ? high * 2 : high + 1; }
    const of = log ? Math.log : (value) => value;
    const place = (value) => from + ((of(value) - of(low)) / (of(high) - of(low))) * (to - from);
    return {place, ticks: log ? logTicks(low, high) : linearTicks(low, high)};
  }

  function draw(holder, chart, hiddenNames) {
    fit(holder);
    const size = {...SIZE};
    const visible = chart.series.map((series, number) => ({...series, number})).filter((s) => !hiddenNames.has(s.name));
    const points = visible.flatMap((series) => series.points);
    holder.replaceChildren();
    const svg = element("svg", {viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": chart.label}, holder);
    const tip = Object.assign(document.createElement("div"), {className: "tip", hidden: true});
    holder.appendChild(tip);
    if (!points.length) { element("text", {x: SIZE.left, y: 40}, svg, "nothing to show: choose a line above"); return; }
    const ys = points.map((point) => point[1]).concat(chart.limit ? [chart.limit.y] : []);
    const x = scale(points.map((point) => point[0]), chart.logX, SIZE.left, SIZE.width - SIZE.right);
    const y = scale(ys, chart.logY, SIZE.height - SIZE.bottom, SIZE.top);
    axes(svg, chart, x, y);
    if (chart.limit) {
      const at = y.place(chart.limit.y);
      element("line", {x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: at, y2: at, class: "limit"}, svg);
      element("text", {x: SIZE.width - SIZE.right, y: at - 6, "text-anchor": "end"}, svg, chart.limit.text);
    }
    for (const series of visible) line(svg, series, x, y);
    hover(svg, tip, size, visible, chart, x, y);
  }
  function axes(svg, chart, x, y) {
    const bottom = SIZE.height - SIZE.bottom;
    for (const tick of y.ticks) {
      const at = y.place(tick);
      element("line", {x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: at, y2: at, class: "grid"}, svg);
      element("text", {x: SIZE.left - 6, y: at + 4, "text-anchor": "end"}, svg, shown(tick));
    }
    for (const tick of x.ticks)
      element("text", {x: x.place(tick), y: bottom + 18, "text-anchor": "middle"}, svg, shown(tick));
    element("text", {x: (SIZE.left + SIZE.width) / 2, y: SIZE.height - 6, "text-anchor": "middle"}, svg, chart.x);
    element("text", {x: 14, y: bottom / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${bottom / 2})`}, svg, chart.y);
  }
  function line(svg, series, x, y) {
    const path = series.points.map((point, n) => `${n ? "L" : "M"}${x.place(point[0]).toFixed(1)} ${y.place(point[1]).toFixed(1)}`);
    element("path", {d: path.join(""), class: "series", stroke: color(series.number),
      "stroke-dasharray": isDashed(series.number) ? "7 5" : "none", "data-series": series.name}, svg);
    if (series.dots || series.points.length === 1)
      for (const point of series.points)
        element("circle", {cx: x.place(point[0]), cy: y.place(point[1]), r: 3.5, fill: color(series.number)}, svg);
    for (const [markX, markY, text] of series.marks || []) {
      element("circle", {cx: x.place(markX), cy: y.place(markY), r: 6, fill: color(series.number), "data-mark": text}, svg);
      // One line lower for each series: marks of neighbours must not write over one another.
      const below = Math.min(y.place(markY) + 20 + 14 * series.number, SIZE.height - SIZE.bottom - 4);
      element("text", {x: x.place(markX), y: below, "text-anchor": "middle", class: "mark"}, svg, text);
    }
  }
  function hover(svg, tip, size, visible, chart, x, y) {
    const dot = element("circle", {r: 6, class: "hovered", visibility: "hidden"}, svg);
    const places = visible.flatMap((series) => series.points.map((point) => ({series, point, at: [x.place(point[0]), y.place(point[1])]})));
    const leave = () => { tip.hidden = true; dot.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * size.width, py = ((event.clientY - box.top) / box.height) * size.height;
      const near = places.reduce((best, place) => {
        const distance = Math.hypot(place.at[0] - px, place.at[1] - py);
        return distance < best.distance ? {...place, distance} : best;
      }, {distance: Infinity});
      dot.setAttribute("cx", near.at[0]); dot.setAttribute("cy", near.at[1]);
      dot.setAttribute("fill", color(near.series.number)); dot.setAttribute("visibility", "visible");
      tip.textContent = near.point[2] || `${near.series.name}\n${chart.x}: ${shown(near.point[0])}\n${chart.y}: ${shown(near.point[1])}`;
      tip.hidden = false;
      const left = (near.at[0] / size.width) * box.width, half = tip.offsetWidth / 2;
      tip.style.left = `${Math.min(Math.max(left, half), box.width - half)}px`;
      tip.style.top = `${(near.at[1] / size.height) * box.height}px`;
    });
    svg.addEventListener("pointerleave", leave);
  }

  function toggles(figure, holder, chart) {
    const hiddenNames = new Set();
    const box = Object.assign(document.createElement("fieldset"), {});
    box.appendChild(Object.assign(document.createElement("legend"), {textContent: "show"}));
    chart.series.forEach((series, number) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), {type: "checkbox", checked: true, name: series.name});
      input.addEventListener("change", () => {
        if (input.checked) hiddenNames.delete(series.name); else hiddenNames.add(series.name);
        draw(holder, chart, hiddenNames);
      });
      const swatch = Object.assign(document.createElement("span"), {className: "swatch"});
      swatch.style.background = isDashed(number)
        ? `repeating-linear-gradient(90deg, ${color(number)} 0 0.4rem, transparent 0.4rem 0.65rem)` : color(number);
      label.append(input, swatch, series.name);
      box.appendChild(label);
    });
    if (chart.series.length > 1) figure.insertBefore(box, holder);
    let width = 0;
    new ResizeObserver(() => {
      if (holder.clientWidth !== width) { width = holder.clientWidth; draw(holder, chart, hiddenNames); }
    }).observe(holder);
  }

  const charts = JSON.parse(document.getElementById("charts").textContent);
  for (const holder of document.querySelectorAll(".plot")) toggles(holder.parentElement, holder, charts[holder.dataset.chart]);
})();
