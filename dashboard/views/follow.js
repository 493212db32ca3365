// Clicks the link beside it, once.

export default function () {
  document.querySelector(".st-key-follow a")?.click();
}
