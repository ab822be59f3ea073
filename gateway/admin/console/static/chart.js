// Charts over time, drawn by uPlot; their colours are those of the page, also when it turns dark.
import { html, useEffect, useRef } from "./lib.js";

const LEAST_S = 300;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `series`: {name, color, dash}; `data`: a list of times, then one of values for each series.
export function Chart({ title, series, data, show, height = 190, most }) {
  const place = useRef(null), plot = useRef(null);
  useEffect(() => {
    const element = place.current;
    const make = () => {
      plot.current?.destroy();
      const soft = color("--faint"), line = color("--line");
      const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11.5px system-ui, sans-serif" };
      plot.current = new uPlot({
        width: Math.max(200, element.clientWidth), height, padding: [10, 18, 0, 0],
        cursor: { points: { size: 7 }, drag: { x: false, y: false } },
        scales: { x: { range: (_, low, high) => [Math.min(low, high - LEAST_S), high] }, y: { range: (_, low, high) => [0, Math.max(most ?? 0, high > 0 ? high * 1.08 : 1)] } },
        axes: [{ ...axis, size: 32, values: (_, times) => times.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })) }, { ...axis, size: 62, values: (_, values) => values.map((v) => show(v)) }],
        series: [{ label: "time", value: (_, t) => (t === null ? "–" : new Date(t * 1000).toLocaleTimeString("en-GB")) },
          ...series.map((each) => ({ label: each.name, stroke: color(each.color), width: 2, dash: each.dash, spanGaps: false, points: { size: 4 }, value: (_, v) => show(v), fill: each.fill ? `${color(each.color)}22` : undefined }))],
      }, data, element);
    };
    make();
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(200, element.clientWidth), height }));
    observer.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", make);
    return () => { observer.disconnect(); scheme.removeEventListener("change", make); plot.current?.destroy(); plot.current = null; };
  }, [series.map((each) => each.name).join()]);
  useEffect(() => { plot.current?.setData(data); }, [data]);
  return html`<div class="chart" ref=${place} role="img" aria-label=${title}></div>`;
}
