// Line charts without a library. Each <div class="plot" data-chart="..."> is drawn from the page's own JSON.
// chart = {label, x, y, logX, logY, series: [{name, points: [[x, y, note?]], bars: [[x, low, high]], marks: [[x, y, text]], dots, place}], limit: {y, text}}
// `place` sets the colour of a line, so that a method looks the same in two charts. The default is its place in the list.
// A chart takes two stops of the Tab key: the legend, to show and hide lines, and the plot, where arrow keys move between points.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const KEYS = "← → move along a line, Page Up and Page Down jump, ↑ ↓ change lines, Home and End go to the ends, Escape leaves";
  const SIZE = {width: 720, height: 340, left: 58, right: 16, top: 16, bottom: 44};
  // One unit is one pixel, so that text stays readable on a phone.
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
  const html = (name, properties) => Object.assign(document.createElement(name), properties);
  const numbered = (series, number) => ({...series, number: series.place ?? number});
  const COLORS = 6;  // later series use the same colours, dashed, then dotted
  const color = (number) => `var(--series-${(number % COLORS) + 1})`;
  const stroke = (number) => Math.floor(number / COLORS) % 3;
  const DASHES = ["none", "7 5", "2 4"], BORDERS = ["solid", "dashed", "dotted"];
  const MOST_DOTS = 300;  // more dots would hide the line
  const shown = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1);
    // Whole numbers, such as rounds, are not rounded.
    return (Number.isInteger(value) ? value : Number(value.toPrecision(4))).toLocaleString("en");
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
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }  // Math.min(...values) fails for very many values
    // The axis starts at zero, unless that leaves half of the chart empty, as for accuracies of 85 to 92.
    if (!log && low < high / 2) low = Math.min(0, low);
    if (low === high) { low = log ? low / 2 : low - 1; high = log ? high * 2 : high + 1; }
    const of = log ? Math.log : (value) => value;
    const place = (value) => from + ((of(value) - of(low)) / (of(high) - of(low))) * (to - from);
    return {place, ticks: log ? logTicks(low, high) : linearTicks(low, high)};
  }

  // Returns the visible lines and how to point at one of their points; null if no line is visible.
  function draw(holder, chart, hiddenNames) {
    fit(holder);
    const visible = chart.series.map(numbered)
      .filter((series) => series.points.length && !hiddenNames.has(series.name));
    const points = visible.flatMap((series) => series.points);
    holder.replaceChildren();
    const svg = element("svg", {viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": chart.label}, holder);
    if (!points.length) { element("text", {x: SIZE.left, y: 40}, svg, "no line is shown: choose one above"); return null; }
    const ends = visible.flatMap((series) => series.bars || []).flatMap((bar) => [bar[1], bar[2]]);
    const ys = points.map((point) => point[1]).concat(ends, chart.limit ? [chart.limit.y] : []);
    const x = scale(points.map((point) => point[0]), chart.logX, SIZE.left, SIZE.width - SIZE.right);
    const y = scale(ys, chart.logY, SIZE.height - SIZE.bottom, SIZE.top);
    axes(svg, chart, x, y);
    if (chart.limit) {
      const at = y.place(chart.limit.y);
      element("line", {x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: at, y2: at, class: "limit"}, svg);
      element("text", {x: SIZE.width - SIZE.right, y: at - 6, "text-anchor": "end", class: "mark"}, svg, chart.limit.text);
    }
    for (const series of visible) line(svg, series, x, y);
    const view = {visible, at: null, ...pointing(holder, svg, chart, x, y)};
    hover(svg, visible, x, y, view);
    return view;
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
      "stroke-dasharray": DASHES[stroke(series.number)], "data-series": series.name}, svg);
    for (const [at, low, high] of series.bars || [])
      element("line", {x1: x.place(at), x2: x.place(at), y1: y.place(low), y2: y.place(high), class: "bar",
        stroke: color(series.number)}, svg);
    if ((series.dots && series.points.length <= MOST_DOTS) || series.points.length === 1)
      for (const point of series.points)
        element("circle", {cx: x.place(point[0]), cy: y.place(point[1]), r: 3.5, fill: color(series.number)}, svg);
    for (const [markX, markY, text] of series.marks || []) {
      element("circle", {cx: x.place(markX), cy: y.place(markY), r: 6, fill: color(series.number), "data-mark": text}, svg);
      // The text is one line lower for each series, so that marks do not overlap.
      const below = Math.min(y.place(markY) + 20 + 14 * series.number, SIZE.height - SIZE.bottom - 4);
      const isLast = x.place(markX) > SIZE.width - 60;  // its text would leave the chart
      element("text", {x: x.place(markX), y: below, "text-anchor": isLast ? "end" : "middle", class: "mark"}, svg, text);
    }
  }

  // Pointer and keys both show a dot on the point and its values beside it. `show` returns the values as text.
  function pointing(holder, svg, chart, x, y) {
    const {width, height} = SIZE;
    const tip = html("div", {className: "tip", hidden: true});
    const dot = element("circle", {r: 6, class: "hovered", visibility: "hidden"}, svg);
    holder.appendChild(tip);
    const hide = () => { tip.hidden = true; dot.setAttribute("visibility", "hidden"); };
    const show = (series, point) => {
      const box = svg.getBoundingClientRect(), at = [x.place(point[0]), y.place(point[1])];
      dot.setAttribute("cx", at[0]); dot.setAttribute("cy", at[1]);
      dot.setAttribute("fill", color(series.number)); dot.setAttribute("visibility", "visible");
      tip.textContent = point[2] || `${series.name}\n${chart.x}: ${shown(point[0])}\n${chart.y}: ${shown(point[1])}`;
      tip.hidden = false;
      const half = tip.offsetWidth / 2;
      tip.style.left = `${Math.min(Math.max((at[0] / width) * box.width, half), box.width - half)}px`;
      tip.style.top = `${(at[1] / height) * box.height}px`;
      return tip.textContent;
    };
    return {show, hide};
  }
  function hover(svg, visible, x, y, view) {
    const {width, height} = SIZE;
    const places = visible.flatMap((series) => series.points.map((point) => ({series, point, at: [x.place(point[0]), y.place(point[1])]})));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * width, py = ((event.clientY - box.top) / box.height) * height;
      const near = places.reduce((best, place) => {
        const distance = Math.hypot(place.at[0] - px, place.at[1] - py);
        return distance < best.distance ? {...place, distance} : best;
      }, {distance: Infinity});
      view.show(near.series, near.point);
    });
    svg.addEventListener("pointerleave", view.hide);
  }

  const kept = (value, last) => Math.min(Math.max(value, 0), last);
  // Returns where a key leads from `at`, {line, point} or null; undefined for other keys.
  function next(visible, at, key) {
    const from = at || {line: 0, point: 0}, points = visible[from.line].points, last = points.length - 1;
    const leap = Math.max(2, Math.round(last / 10)), first = at ? 1 : 0;
    const along = {ArrowLeft: from.point - 1, ArrowRight: from.point + first, PageUp: from.point - leap,
      PageDown: from.point + leap, Home: 0, End: last}[key];
    if (along !== undefined) return {line: from.line, point: kept(along, last)};
    const across = {ArrowUp: from.line - 1, ArrowDown: from.line + first}[key];
    if (across === undefined) return undefined;
    const to = kept(across, visible.length - 1), here = points[from.point][0];
    return {line: to, point: nearest(visible[to].points, here)};
  }
  function nearest(points, x) {
    let best = 0;
    points.forEach((point, number) => { if (Math.abs(point[0] - x) < Math.abs(points[best][0] - x)) best = number; });
    return best;
  }
  const isPlain = (event) => !(event.ctrlKey || event.altKey || event.metaKey || event.shiftKey);

  function keyboard(figure, holder, chart, state) {
    const said = html("p", {className: "unseen"});
    said.setAttribute("role", "status");
    said.setAttribute("aria-live", "polite");
    const help = html("p", {className: "keys", id: `keys-${holder.dataset.chart}`, textContent: KEYS});
    holder.after(help, said);
    const attributes = {tabindex: 0, role: "application", "aria-roledescription": "line chart", "aria-label": chart.label,
      "aria-describedby": help.id};
    for (const [key, value] of Object.entries(attributes)) holder.setAttribute(key, value);
    holder.addEventListener("keydown", (event) => {
      if (event.key === "Escape") holder.blur();
      const to = state.view && isPlain(event) ? next(state.view.visible, state.view.at, event.key) : undefined;
      if (to === undefined) return;
      event.preventDefault();
      state.view.at = to;
      const series = state.view.visible[to.line];
      said.textContent = state.view.show(series, series.points[to.point]).replaceAll("\n", ", ");
    });
    holder.addEventListener("blur", () => {
      said.textContent = "";
      if (state.view) { state.view.at = null; state.view.hide(); }
    });
  }

  function swatch(series) {
    const made = html("span", {className: "swatch"});
    made.style.borderTop = `0.25rem ${BORDERS[stroke(series.number)]} ${color(series.number)}`;  // printers leave backgrounds out
    return made;
  }
  // A single line has a name, but nothing to choose.
  function name(figure, holder, chart) {
    const bar = html("div", {className: "legend"}), alone = html("span", {className: "alone"});
    alone.append(swatch(numbered(chart.series[0], 0)), chart.series[0].name);
    bar.appendChild(alone);
    figure.insertBefore(bar, holder);
  }
  // The legend shows and hides lines. It is one stop of the Tab key; arrow keys move within it.
  function legend(figure, holder, chart, hiddenNames, redraw) {
    const bar = html("div", {className: "legend"});
    bar.setAttribute("role", "toolbar");
    bar.setAttribute("aria-label", `Lines of: ${chart.label}`);
    const inputs = chart.series.map(numbered).map((series, at) => {
      const input = html("input", {type: "checkbox", checked: true, name: series.name, tabIndex: at ? -1 : 0});
      input.addEventListener("change", () => {
        if (input.checked) hiddenNames.delete(series.name); else hiddenNames.add(series.name);
        redraw();
      });
      const label = html("label", {});
      label.append(input, swatch(series), series.name);
      bar.appendChild(label);
      return input;
    });
    bar.addEventListener("focusin", (event) => { for (const input of inputs) input.tabIndex = input === event.target ? 0 : -1; });
    bar.addEventListener("keydown", (event) => {
      const here = inputs.indexOf(event.target), last = inputs.length - 1;
      const to = {ArrowLeft: here - 1, ArrowUp: here - 1, ArrowRight: here + 1, ArrowDown: here + 1, Home: 0, End: last}[event.key];
      if (to === undefined || !isPlain(event)) return;
      event.preventDefault();
      inputs[kept(to, last)].focus();
    });
    figure.insertBefore(bar, holder);
  }

  function build(figure, holder, chart) {
    const hiddenNames = new Set(), state = {view: null};
    const redraw = () => { state.view = draw(holder, chart, hiddenNames); };
    if (chart.series.length > 1) legend(figure, holder, chart, hiddenNames, redraw); else name(figure, holder, chart);
    keyboard(figure, holder, chart, state);
    let width = 0;
    new ResizeObserver(() => {
      if (holder.clientWidth !== width) { width = holder.clientWidth; redraw(); }
    }).observe(holder);
  }

  const charts = JSON.parse(document.getElementById("charts").textContent);
  for (const holder of document.querySelectorAll(".plot")) build(holder.parentElement, holder, charts[holder.dataset.chart]);
})();
