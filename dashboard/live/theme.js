// Drawing on canvases: the theme's colours, slanted lines, and sharp pixels. The palette comes with the data; background and
// font are Streamlit's.

/** The theme at an element of the page. */
export function themeOf(element, palette) {
  const style = getComputedStyle(element);
  const value = (name, otherwise) => style.getPropertyValue(`--st-${name}`).trim() || otherwise;
  const background = backgroundAt(element);
  const isDark = luminance(background) < 0.4;
  const text = (opacity) => (isDark ? `rgba(250, 250, 250, ${opacity})` : `rgba(49, 51, 63, ${opacity})`);
  const colours = palette[isDark ? "dark" : "light"];
  return {
    ...colours,
    isDark,
    background,
    border: text(0.2),
    faint: text(isDark ? 0.06 : 0.05),
    gap: translucent(colours.wrong, isDark ? 0.5 : 0.35),
    primary: value("primary-color", colours.text),
    font: value("font", "sans-serif"),
  };
}

/** Streamlit's background at the element; the theme may change while the page is open. */
export function backgroundAt(element) {
  return getComputedStyle(element).getPropertyValue("--st-background-color").trim() || "#ffffff";
}

/** Set the palette's colours as CSS variables. */
export function setVariables(element, theme) {
  for (const name of ["muted", "wrong", "warning", "calm"]) element.style.setProperty(`--${name}`, theme[name]);
}

/** Match the canvas to the screen's resolution, and scale its pen to CSS pixels. */
export function sharpen(canvas, pen) {
  const sharp = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * sharp), Math.round(canvas.clientHeight * sharp)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
}

/** `#rrggbb` with an opacity. */
export function translucent(colour, opacity) {
  return colour + Math.round(opacity * 255).toString(16).padStart(2, "0");
}

function luminance(colour) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  return (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
}

const patterns = new Map();

/** Slanted lines, for unknown or missing time. */
export function hatch(context, colour) {
  if (!patterns.has(colour)) {
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
    patterns.set(colour, context.createPattern(tile, "repeat"));
  }
  return patterns.get(colour);
}
