// A button that copies the page's address. A range that moves with the clock is written as it is at that moment, so that who
// opens the link sees the same.

const SHOWN_MS = 2000;

export default function ({ parentElement, data }) {
  const button = parentElement.querySelector("button");
  button.title = "Copy this page's address, with both ends of its time range";
  button.onclick = async () => {
    const address = new URL(location.href);
    for (const [name, ago_ms] of Object.entries(data.ago_ms)) {
      address.searchParams.set(name, new Date(Date.now() - ago_ms).toISOString());
    }
    button.textContent = (await copied(address.href)) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy link"), SHOWN_MS);
  };
}

/** Whether the text could be copied. Browsers have a clipboard for scripts only on https and on this machine. */
async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
