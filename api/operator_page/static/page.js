// What scripts add to the operator page: it renews itself in place, says when the daemon is gone, and its charts answer
// to the pointer. Everything else is in the page as the daemon renders it.
(() => {
  "use strict";

  const SECOND = 1000;
  const SPAN_MIN = 120;
  const STEPS = [60, 120, 240]; // seconds between the marks of the time axis
  const CHARTS = {
    requests: {
      least: 5,
      series: [["reads", "reads_per_second"], ["writes", "writes_per_second"]],
      value: (v) => (v < 9.95 ? v.toFixed(1).replace(/\.0$/, "") : Math.round(v).toLocaleString("en")),
    },
    hits: { series: [["hits", "hit_ratio"]], value: (v) => `${+(100 * v).toFixed(1)} %`, top: 1 },
    latency: { least: 0.0005, series: [["median", "get_p50_seconds"], ["p99", "get_p99_seconds"]], value: seconds },
  };

  function seconds(v) {
    if (v < 0.0009995) return `${+(v * 1e6).toPrecision(3)} µs`;
    return v < 0.9995 ? `${+(v * 1e3).toPrecision(3)} ms` : `${+v.toPrecision(3)} s`;
  }

  // -- renewing ---------------------------------------------------------------------------------------------------

  const connection = document.getElementById("connection");

  function lost(why) {
    if (!connection.hidden) return;
    connection.textContent = `${why} What you see is as of ${document.querySelector(".taken time").textContent}.`;
    connection.hidden = false;
  }

  // Where the address holds a name and a password, a relative one would too, and browsers refuse to fetch that.
  const absolute = (path) => new URL(path, location.origin).href;

  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden) event.preventDefault();
    const request = event.detail.ctx.request;
    request.action = absolute(request.action);
  });
  document.addEventListener("htmx:response:error", (event) => {
    const status = event.detail.ctx.response.status;
    lost(status === 401 || status === 403 ? "The daemon asks who you are: reload." : `The daemon answered ${status}.`);
  });
  document.addEventListener("htmx:error", () => lost("The daemon does not answer."));
  document.addEventListener("htmx:after:swap", () => {
    connection.hidden = true;
  });

  // -- charts -----------------------------------------------------------------------------------------------------

  const plots = new Map();

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { lines: [of("--accent"), of("--evidence")], text: of("--quiet"), grid: of("--line"), font: of("--text") };
  }

  function axis(paint, more) {
    const line = { stroke: paint.grid, width: 1 };
    return { stroke: paint.text, font: `11px ${paint.font}`, grid: line, ticks: { show: false }, ...more };
  }

  function options(chart, place, readout) {
    const paint = colours();
    const minutes = (u, splits) => splits.map((t) => {
      const ago = Math.round(u.scales.x.max - t);
      return ago ? `−${ago / 60} min` : "now";
    });
    const every = (u, index, min, max) => {
      const step = STEPS.find((candidate) => candidate * 3 > max - min) ?? STEPS[STEPS.length - 1];
      return [max - 2 * step, max - step, max].filter((t) => t >= min);
    };
    return {
      width: place.clientWidth,
      height: place.clientHeight - 12,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: {
        x: { time: false, auto: false },
        y: { range: (u, min, max) => [0, chart.top ?? Math.max((max ?? 0) * 1.1, chart.least)] },
      },
      axes: [
        axis(paint, { grid: { show: false }, size: 24, gap: 8, splits: every, values: minutes }),
        axis(paint, { size: 52, gap: 4, space: 36, values: (u, splits) => splits.map((v) => (v ? chart.value(v) : "0")) }),
      ],
      series: [
        {},
        ...chart.series.map(([label], i) => ({ label, stroke: paint.lines[i], width: 1.75, points: { show: false } })),
      ],
      hooks: {
        setCursor: [(u) => {
          const at = u.cursor.idx;
          readout.hidden = at === null || at === undefined;
          if (readout.hidden) return;
          const time = new Date(u.data[0][at] * SECOND).toISOString().slice(11, 19);
          const values = chart.series.map(([label], i) => [label, u.data[i + 1][at]]);
          const texts = values.map(([label, v]) => `${label} ${v === null ? "–" : chart.value(v)}`);
          readout.textContent = `${time}  ${texts.join("  ")}`;
        }],
      },
      padding: [6, 14, 0, 0],
    };
  }

  function draw(place, history) {
    const chart = CHARTS[place.dataset.chart];
    const data = [history.at, ...chart.series.map(([, column]) => history[column])];
    let plot = plots.get(place);
    if (!plot) {
      const readout = document.createElement("div");
      readout.className = "readout";
      readout.hidden = true;
      place.replaceChildren();
      plot = new uPlot(options(chart, place, readout), data, place);
      place.append(readout);
      plots.set(place, plot);
      resizing.observe(place);
    } else {
      plot.setData(data, false);
    }
    const now = history.at.length ? history.at[history.at.length - 1] : Date.now() / SECOND;
    const age = now - (history.at[0] ?? now);
    plot.setScale("x", { min: now - Math.min(Math.max(age, SPAN_MIN), history.span_seconds), max: now });
  }

  const resizing = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      plots.get(target)?.setSize({ width: target.clientWidth, height: target.clientHeight - 12 });
    }
  });

  async function drawAll() {
    const places = document.querySelectorAll(".plot[data-chart]");
    if (document.hidden || !places.length) return;
    try {
      const answer = await fetch(absolute("/v1/history"), { headers: { accept: "application/json" } });
      if (!answer.ok) return;
      const history = await answer.json();
      for (const place of places) if (place.isConnected) draw(place, history);
      document.documentElement.dataset.charts = String(history.at.length);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // no connection: the page's own renewal says so
    }
  }

  function redraw() {
    for (const [place, plot] of plots) {
      plot.destroy();
      resizing.unobserve(place);
    }
    plots.clear();
    drawAll();
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("visibilitychange", drawAll);
  setInterval(drawAll, 2 * SECOND);
  drawAll();

  document.getElementById("result")?.focus();
})();
