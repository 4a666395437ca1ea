// Charts: values at the pointer, in all charts at once; dragging over a period zooms to it.

const UNITS = {
  seconds: (value) => (value < 1 ? `${(value * 1000).toFixed(1)} ms` : value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`),
  share: (value) => `${(value * 100).toFixed(0)} %`,
  bytes: (value) => `${(value / 2 ** 20).toFixed(0)} MiB`,
};
const written = (value, unit) => (UNITS[unit] ?? ((number) => number.toLocaleString("en", { maximumFractionDigits: 1 })))(value);

const plots = () => document.querySelectorAll(".plot[data-begin]");

/** A time in the time zone of the page. */
const iso = (plot, at) => {
  const { offset, change, later } = plot.dataset;
  return new Date((at + Number(at >= change ? later : offset)) * 1000).toISOString().slice(0, 19);
};

function timeAt(plot, event) {
  const box = plot.getBoundingClientRect();
  const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  return Number(plot.dataset.begin) + share * (plot.dataset.end - plot.dataset.begin);
}

/** The value of the nearest point of a line, if it is near. */
function near(line, x) {
  const points = [...line.points].map((point) => [Math.abs(point.x - x), point.y]);
  const [distance, y] = points.reduce((best, each) => (each[0] < best[0] ? each : best), [Infinity, 0]);
  return distance <= 15 ? y : null;
}

function show(plot, at, words) {
  const share = (at - plot.dataset.begin) / (plot.dataset.end - plot.dataset.begin);
  let cross = plot.querySelector(".cross");
  if (!cross) {
    plot.insertAdjacentHTML("beforeend", '<div class="cross" aria-hidden="true"><span></span></div>');
    cross = plot.querySelector(".cross");
  }
  cross.style.left = `${share * 100}%`;
  cross.classList.toggle("far", share > 0.6);
  const label = cross.querySelector("span");
  label.hidden = !words;
  if (!words) return;
  const lines = [...plot.querySelectorAll("polyline")].map((line) => [line.dataset.name, near(line, share * 1000)]);
  const values = lines.filter(([, y]) => y !== null).map(([name, y]) => `${name} ${written((1 - y / 100) * plot.dataset.top, plot.dataset.unit)}`.trim());
  label.textContent = [iso(plot, at).replace("T", " "), ...new Set(values)].join("\n");
}

const hide = () => document.querySelectorAll(".plot .cross").forEach((cross) => cross.remove());

let from = null;

document.addEventListener("pointermove", (event) => {
  const plot = event.target.closest?.(".plot[data-begin]");
  if (!plot) return hide();
  const at = timeAt(plot, event);
  for (const each of plots()) show(each, at, each === plot);
  if (from?.plot !== plot) return;
  const [begin, end] = [Math.min(from.at, at), Math.max(from.at, at)].map((each) => (each - plot.dataset.begin) / (plot.dataset.end - plot.dataset.begin));
  from.mark.style.left = `${begin * 100}%`;
  from.mark.style.width = `${(end - begin) * 100}%`;
});

document.addEventListener("pointerdown", (event) => {
  const plot = event.target.closest?.(".plot[data-begin]");
  if (!plot || event.button || event.pointerType === "touch") return;
  event.preventDefault();
  const mark = document.createElement("div");
  mark.className = "chosen";
  plot.append(mark);
  from = { plot, at: timeAt(plot, event), mark };
});

document.addEventListener("pointerup", (event) => {
  if (!from) return;
  const { plot, at, mark } = from;
  from = null;
  mark.remove();
  const [begin, end] = [at, timeAt(plot, event)].sort((one, other) => one - other);
  // A shorter drag is a click.
  if (end - begin < (plot.dataset.end - plot.dataset.begin) / 100) return;
  const here = new URL(location.href);
  here.searchParams.set("from", iso(plot, begin));
  here.searchParams.set("to", iso(plot, end));
  location.assign(here);
});
