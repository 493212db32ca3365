// Colours: Streamlit's own for the page, and one for each phase that keeps its contrast on light and on dark.
// Red is kept for what is wrong.

const LIGHT = {
  queued: "#98a2b3", lookup: "#0e9fb8", "waiting for remote KV": "#d99a06", load: "#0a9168", prefill: "#2458d3",
  decode: "#7ba4f4", preempted: "#e8590c", store: "#8b46d9", done: "#c3c9d3", running: "#4c7de8", failed: "#d92d20",
};
const DARK = {
  queued: "#667085", lookup: "#22b8cf", "waiting for remote KV": "#e6b422", load: "#20b486", prefill: "#3b74f2",
  decode: "#8fb4fa", preempted: "#f47b3e", store: "#a877ee", done: "#475063", running: "#5f8ff5", failed: "#f2594b",
};

export function themeOf(element) {
  const style = getComputedStyle(element);
  const value = (name, otherwise) => style.getPropertyValue(`--st-${name}`).trim() || otherwise;
  const background = value("background-color", "#ffffff");
  const isDark = luminance(background) < 0.4;
  return {
    isDark,
    background,
    text: value("text-color", isDark ? "#fafafa" : "#31333f"),
    border: isDark ? "rgba(250, 250, 250, 0.14)" : "rgba(49, 51, 63, 0.14)",
    faint: isDark ? "rgba(250, 250, 250, 0.06)" : "rgba(49, 51, 63, 0.05)",
    muted: isDark ? "rgba(250, 250, 250, 0.66)" : "rgba(49, 51, 63, 0.68)",
    primary: value("primary-color", "#2563eb"),
    wrong: isDark ? "#ff6b5e" : "#d92d20",
    font: value("font", "sans-serif"),
    phases: isDark ? DARK : LIGHT,
  };
}

function luminance(colour) {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
  return (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
}

const patterns = new Map();

/** Slanted lines, for what is not known or not there. */
export function hatch(context, colour) {
  const known = patterns.get(colour);
  if (known) return known;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  pen.lineWidth = 1.2;
  for (const shift of [-8, 0, 8]) {
    pen.moveTo(shift, 8);
    pen.lineTo(shift + 8, 0);
  }
  pen.stroke();
  const pattern = context.createPattern(tile, "repeat");
  patterns.set(colour, pattern);
  return pattern;
}
