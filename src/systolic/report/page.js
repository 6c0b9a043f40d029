"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const views = {};
  const domain = "zoom_begin";

  // Plots take their colors from the page's CSS variables, so that a change of scheme or printing needs no redraw.
  const drawn = Object.keys(specs).map((name) => {
    const place = document.getElementById(`plot-${name}`);
    if (!place) return null;
    const options = { renderer: "svg", actions: false, tooltip: { theme: "custom" } };
    return vegaEmbed(place, specs[name], options).then(
      (made) => { views[name] = place.systolicView = made.view; },
      (error) => { place.textContent = `This plot could not be drawn: ${error.message}`; },
    );
  });
  Promise.all(drawn).then(() => { document.documentElement.dataset.drawn = "yes"; });

  const move = (view, how) => {
    const [begin, end] = view.scale("x").domain();
    const middle = (begin + end) / 2;
    const half = (end - begin) / 2;
    const step = { in: [0.5, 0], out: [2, 0], left: [1, -1], right: [1, 1] }[how];
    const moved = middle + step[1] * half;
    return [moved - half * step[0], moved + half * step[0]];
  };
  document.querySelectorAll("button[data-zoom]").forEach((button) => {
    button.addEventListener("click", () => {
      const view = views[button.dataset.of];
      if (!view) return;
      const how = button.dataset.zoom;
      view.signal(domain, how === "reset" ? null : move(view, how)).runAsync();
    });
  });

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("scheme");
  const root = document.documentElement;
  const now = () => root.dataset.scheme || (dark.matches ? "dark" : "light");
  const label = () => {
    const other = now() === "dark" ? "light" : "dark";
    button.textContent = other === "dark" ? "☾ dark" : "☀ light";
    button.setAttribute("aria-label", `Show the page in the ${other} scheme`);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.scheme = now() === "dark" ? "light" : "dark";
    label();
  });
  dark.addEventListener("change", label);
  label();
})();
