// Plays a run back: what the session looked like at a second, from the times that were recorded.

import { el, seconds } from "./dom.js";

const PHASES = ["queue_s", "fill_s", "generate_s", "transform_s"];
const LONGEST_S = 10; // a longer run is played faster, so that it takes this long
const STEPS = 1000; // of the slider

const least = (...times) => Math.min(...times.filter((time) => time !== null && time !== undefined));

// The last second that anything is known of.
export function endOf(session) {
  let last = session.ended ?? 0;
  for (const task of session.tasks.values()) last = Math.max(last, task.submitted_s, task.ended_s ?? 0);
  return last;
}

// The session at second `at`. Tasks that were not submitted yet have the state "later".
export function then(session, at) {
  const tasks = new Map([...session.tasks].map(([id, task]) => [id, taskThen(task, at)]));
  const whole = endOf(session);
  return { ...session, tasks, critical: at < whole ? null : session.critical, at, whole };
}

function taskThen(task, at) {
  if (task.ended_s !== null && task.ended_s <= at) return task;
  if (task.submitted_s > at) return { ...task, state: "later", steps: [], queued_s: null, finished_s: null };
  if (task.kind) return { ...task, state: stepState(task, at), finished_s: cut(task, at) };
  const steps = task.steps.filter((step) => step.queued_s <= at).map((step) => stepThen(step, at));
  const last = task.steps[steps.length - 1];
  return { ...task, steps, state: last ? stepState(last, at) : "waiting" };
}

const cut = (step, at) => (step.queued_s === null || step.queued_s > at ? null : least(step.finished_s, at));

function stepState(step, at) {
  if (step.queued_s === null || step.queued_s > at) return "waiting";
  if (step.finished_s !== null && step.finished_s <= at) return "waiting"; // for the next output
  const sent = step.sent_s ?? step.started_s;
  return sent === null || sent > at ? "queued" : "running";
}

// Its phases up to `at`.
function stepThen(step, at) {
  let left = at - step.queued_s;
  const phases = {};
  for (const phase of PHASES) {
    phases[phase] = Math.min(step[phase] ?? 0, Math.max(left, 0));
    left -= step[phase] ?? 0;
  }
  return { ...step, ...phases };
}

// The controls. `moved` gets the second to show, or null for the present.
export function player(moved) {
  let whole = 0;
  let at = null;
  let playing = null; // the timer
  const slider = el("input", { type: "range", min: 0, max: STEPS, value: STEPS, "aria-label": "time of the run" });
  const button = el("button", { type: "button" }, "Play");
  const now = el("button", { type: "button" }, "Present");
  const time = el("output", { class: "soft" });

  const show = (second) => {
    at = second;
    moved(at);
    draw();
  };
  const draw = () => {
    const told = `${seconds(at ?? whole)} of ${seconds(whole)}`;
    slider.value = at === null || !whole ? STEPS : Math.round((at / whole) * STEPS);
    slider.setAttribute("aria-valuetext", told);
    time.textContent = told;
    now.hidden = at === null;
    button.textContent = playing ? "Pause" : "Play";
  };
  const stop = () => {
    clearInterval(playing);
    playing = null;
  };
  const play = () => {
    const from = at === null || at >= whole ? 0 : at;
    const began = performance.now();
    const speed = Math.max(1, whole / LONGEST_S);
    playing = setInterval(() => {
      const second = from + ((performance.now() - began) / 1000) * speed;
      if (second >= whole || !box.isConnected) stop();
      show(Math.min(second, whole));
    }, 50);
    show(from);
  };
  slider.addEventListener("input", () => {
    stop();
    show((slider.value / STEPS) * whole);
  });
  button.addEventListener("click", () => {
    if (playing) stop();
    else play();
    draw();
  });
  now.addEventListener("click", () => {
    stop();
    show(null);
    button.focus(); // this button is hidden now
  });
  const box = el("div", { class: "player", role: "group", "aria-label": "playback" }, button, slider, time, now);
  box.grown = (longest) => {
    whole = longest;
    box.hidden = whole <= 0;
    draw();
  };
  return box;
}
