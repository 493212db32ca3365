// Clicks the adjacent link once, as soon as it exists.

export default function () {
  let waiting;
  const click = () => {
    const link = document.querySelector(".st-key-follow a");
    if (link) link.click();
    else waiting = requestAnimationFrame(click);
  };
  click();
  return () => cancelAnimationFrame(waiting);
}
