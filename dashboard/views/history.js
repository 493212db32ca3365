// Keeps a page that comes late out of the browser's history. Where the server draws another page than the address names,
// Streamlit adds that page to the history: also one that the reader has already gone back from.

const GUARDED = Symbol.for("kvtrail history");

export default function () {
  if (window[GUARDED]) return;
  window[GUARDED] = true;
  let hasGoneBack = false;
  window.addEventListener("popstate", () => { hasGoneBack = true; });
  window.addEventListener("click", () => { hasGoneBack = false; }, true);
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const isOtherPage = new URL(url, location.href).pathname !== location.pathname;
    if (!(hasGoneBack && isOtherPage)) push(state, title, url);
  };
}
