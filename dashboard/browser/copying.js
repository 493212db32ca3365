// Copying a link from its button.

const SHOWN_MS = 2000;

/** Copy a link, and show the result on its button for a while. */
export async function copyLink(address, button) {
  button.textContent = (await copied(address)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy link"), SHOWN_MS);
}

/** Copy a text; false if that failed. Browsers offer the clipboard API only on https and localhost: elsewhere use the old one. */
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
