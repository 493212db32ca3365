// A button that copies the page's address. A relative range is copied as it is at that moment, so that the link shows the same.

import { copyLink } from "./copying.js";

export default function ({ parentElement, data }) {
  const button = parentElement.querySelector("button");
  button.title = "Copy this page's address, with both ends of its time range";
  button.onclick = () => {
    const address = new URL(location.href);
    for (const [name, ago_ms] of Object.entries(data.ago_ms)) {
      address.searchParams.set(name, new Date(Date.now() - ago_ms).toISOString());
    }
    copyLink(address.href, button);
  };
}
