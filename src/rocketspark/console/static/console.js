// What moves on a page: figures and plots from the console's samples. Without it every page still works.
"use strict";
(() => {
  const KEPT = 720;
  const AGAIN_MS = 5000;
  const plots = [];

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function shown(value) {
    return value >= 100 ? Math.round(value).toLocaleString("en").replaceAll(",", "\u202f") : value.toFixed(1);
  }

  function draw(box, samples) {
    const keys = box.dataset.plot.split(",");
    const names = (box.dataset.names || box.dataset.plot).split(",");
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const columns = [samples.map((s) => s[0]), ...keys.map((key) => samples.map((s) => s[1][key] ?? null))];
    const plot = new uPlot({
      width: Math.max(240, box.clientWidth),
      height: 190,
      cursor: { y: false },
      scales: { y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis, { ...axis, size: 56 }],
      series: [
        { value: (u, at) => (at === null ? "–" : new Date(at * 1000).toLocaleTimeString()) },
        ...keys.map((key, i) => ({
          label: names[i] || key,
          stroke: color(`--plot-${(i % 4) + 1}`),
          width: 2,
          spanGaps: false,
          value: (u, value) => (value === null ? "–" : shown(value)),
        })),
      ],
    }, columns, box);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", `Plot of ${names.join(", ")}`);
    plots.push({ box, keys, plot, columns });
  }

  function take([at, values]) {
    for (const each of document.querySelectorAll("[data-live]")) {
      const value = values[each.dataset.live];
      if (value !== undefined) each.textContent = ["disk", "lag"].includes(each.dataset.live) ? Math.round(value).toLocaleString("en").replaceAll(",", "\u202f") : shown(value);
    }
    for (const { keys, plot, columns } of plots) {
      columns[0].push(at);
      keys.forEach((key, i) => columns[i + 1].push(values[key] ?? null));
      if (columns[0].length > KEPT) columns.forEach((column) => column.shift());
      plot.setData(columns);
    }
  }

  // The samples that the console keeps, none if it cannot tell them now, null if it does not show them to this user.
  async function kept(asked) {
    try {
      const answer = await fetch("/samples" + asked);
      return answer.ok ? await answer.json() : answer.status >= 500 ? [] : null;
    } catch {
      return [];
    }
  }

  async function begin() {
    const boxes = [...document.querySelectorAll("[data-plot]")].filter((box) => box.dataset.plot);
    if (!boxes.length && !document.querySelector("[data-live]")) return;
    const names = new Set(boxes.flatMap((box) => box.dataset.plot.split(",")));
    for (const each of document.querySelectorAll("[data-live]")) names.add(each.dataset.live);
    const asked = "?" + new URLSearchParams({ names: [...names].join(",") });
    const samples = await kept(asked);
    if (samples === null) return;
    for (const box of boxes) draw(box, samples);
    let newest = samples.length ? samples[samples.length - 1][0] : 0;
    let source = null;

    function takeNewer(sample) {
      if (sample[0] <= newest) return;
      newest = sample[0];
      take(sample);
    }

    // A browser has six connections to a console for all of its pages: one that nobody sees leaves its own to the others.
    function rest() {
      source?.close();
      source = null;
    }

    function follow() {
      if (source || document.hidden) return;
      source = new EventSource("/events" + asked);
      source.addEventListener("sample", (event) => takeNewer(JSON.parse(event.data)));
      source.addEventListener("error", (event) => {
        // A browser gives up for good where the answer is an error: the cluster, or a place, may be there again soon.
        if (event.target.readyState !== EventSource.CLOSED || event.target !== source) return;
        source = null;
        setTimeout(shownAgain, AGAIN_MS);
      });
    }

    async function shownAgain() {
      const missed = await kept(asked);
      if (missed === null) return;
      missed.forEach(takeNewer);
      follow();
    }

    follow();
    document.addEventListener("visibilitychange", () => (document.hidden ? rest() : shownAgain()));
    addEventListener("pagehide", rest);
    addEventListener("resize", () => {
      for (const { box, plot } of plots) plot.setSize({ width: Math.max(240, box.clientWidth), height: 190 });
    });
  }

  begin().catch(() => {});
})();
