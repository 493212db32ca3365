// Copying a link from its button.

const SHOWN_MS = 2000;

/** Copy a link, and say on its button for a while whether that worked. */
export async function copyLink(address, button) {
  button.textContent = (await copied(address)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy link"), SHOWN_MS);
}

/** Whether the text could be copied. Browsers have a clipboard for scripts only on https and on this machine; the old way then. */
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
