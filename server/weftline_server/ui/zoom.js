// The zoom of the graph: buttons, the keys + - 0, and the wheel with the control key.

import { el } from "./dom.js";

const STEP = 1.25;
const LEAST = 0.1;
const LEGIBLE = 0.6;
const MOST = 3;
export const FIT = "fit"; // the whole graph is as wide as its view, and no larger than life
export const START = "start"; // the same, as far as its texts can be read

const bounded = (zoom) => Math.min(MOST, Math.max(LEAST, zoom));

// The factor to draw a picture of this width with, in a view of that one.
export function factor(zoom, width, view) {
  if (zoom !== FIT && zoom !== START) return zoom;
  const fit = bounded(Math.min(1, view / Math.max(width, 1)));
  return zoom === START ? Math.max(fit, LEGIBLE) : fit;
}

// `changed` gets a number or FIT. `bar.shown` takes the factor that was drawn. `bar.listen` takes the
// element in which keys and wheel count.
export function zoomBar(changed) {
  let now = 1;
  const by = (step) => changed(bounded(now * step));
  const told = el("output", { class: "soft" });
  const button = (label, sign, act) => el("button", { type: "button", "aria-label": label, onclick: act }, sign);
  const bar = el(
    "span",
    { class: "zoom" },
    button("zoom out", "−", () => by(1 / STEP)),
    button("zoom in", "+", () => by(STEP)),
    button("fit the graph into its view", "Fit", () => changed(FIT)),
    button("zoom to 100 %", "100 %", () => changed(1)),
    told,
  );
  bar.shown = (zoom) => {
    now = zoom;
    told.textContent = `${Math.round(zoom * 100)} %`;
  };
  bar.listen = (view) => {
    view.addEventListener("keydown", (event) => {
      const act = { "+": () => by(STEP), "=": () => by(STEP), "-": () => by(1 / STEP), 0: () => changed(1) }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return; // those are the browser's own
      event.preventDefault();
      act();
    });
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      by(event.deltaY < 0 ? STEP : 1 / STEP);
    }, { passive: false });
  };
  return bar;
}
