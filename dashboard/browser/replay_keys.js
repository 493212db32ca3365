// The replay's keys. Steps are counted here and sent as a number: Streamlit keeps only one of several clicks that arrive during
// a redraw. The step goes into the browser's address here, too: Streamlit would add each to the history.

const LISTENERS = new WeakMap();

class Keys {
  constructor() {
    this.presses = 0;
    this.listen = (event) => this.press(event);
  }

  /** The page's current step. An answer to an earlier press is out of date. */
  take({ data, setStateValue }) {
    Object.assign(this, { data, setStateValue });
    const address = new URL(location.href);
    if (address.searchParams.get("step") !== String(data.step)) {
      address.searchParams.set("step", data.step);
      history.replaceState(history.state, "", address);
    }
    if (data.presses === this.presses || this.step === undefined) {
      this.step = data.step;
      this.presses = data.presses;
    }
  }

  press(event) {
    const target = event.composedPath()[0];
    if (target.matches?.("input, textarea, select, [contenteditable]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = this.target(event.key);
    if (to === undefined || to < 1 || to > this.data.steps) return;
    event.preventDefault();
    this.step = to;
    this.presses += 1;
    this.setStateValue("pressed", { step: to, presses: this.presses });
  }

  target(key) {
    const { with_findings } = this.data;
    if (key === "n") return this.step + 1;
    if (key === "p") return this.step - 1;
    if (key === "f") return with_findings.find((each) => each > this.step);
    if (key === "F") return with_findings.findLast((each) => each < this.step);
    return undefined;
  }
}

/** Streamlit calls this at first, and with each new data; presses in between must not be lost. */
export default function (component) {
  const root = component.parentElement;
  if (!LISTENERS.has(root)) LISTENERS.set(root, new Keys());
  const keys = LISTENERS.get(root);
  keys.take(component);
  document.addEventListener("keydown", keys.listen); // adding the same listener again has no effect
  (root.host ?? root).dataset.listens = "yes"; // tests wait for this
  return () => document.removeEventListener("keydown", keys.listen);
}
