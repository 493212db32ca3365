// Keeps late pages out of the browser's history. If the server draws a page other than that of the URL, Streamlit adds it to
// the history, even if the user has already navigated back.

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
