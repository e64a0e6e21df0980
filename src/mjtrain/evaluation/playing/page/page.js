"use strict";
// Plays the recorded episodes: time, camera, curves.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const canvas = find("scene");
const COLORS = ["#3b6fb6", "#d9822b", "#3a9b5c", "#c0504d", "#7b5ea7", "#8c6d4f", "#c76fa8", "#6f7780", "#a3a433", "#2fa3b5"];

const state = { episode: 0, time: 0, playing: true, speed: 1, dirty: true };
const camera = { azimuth: -2.2, elevation: 0.35, distance: 2.2 * data.scene.size_m, pan: [0, 0, 0] };
let renderer, episode;

function openEpisode(index) {
  const packed = data.episodes[index];
  state.episode = index;
  state.time = 0;
  episode = {
    ...packed,
    positions: unpack(packed.positions),
    quats: unpack(packed.quats),
    marks: packed.marks.map(unpack),
    curves: packed.curves.map((curve) => ({ ...curve, ...unpack(curve.values) })),
  };
  episode.length = (episode.positions.shape[0] - 1) * episode.frame_dt;
  renderer.setExtra(packed.grounds);
  find("time").max = episode.length;
  find("outcome").textContent = packed.outcome;
  makePlots();
  state.dirty = true;
}

// The pose of a row of an array of positions and one of quaternions, between two frames.
function poseAt(positions, quats, count, index) {
  const exact = Math.min(Math.max(state.time / episode.frame_dt, 0), positions.shape[0] - 1);
  const a = Math.floor(exact), b = Math.min(a + 1, positions.shape[0] - 1), part = exact - a;
  const read = (array, width, frame) => array.values.subarray(width * (frame * count + index), width * (frame * count + index + 1));
  const [p, q] = [read(positions, 3, a), read(positions, 3, b)], [r, s] = [read(quats, 4, a), read(quats, 4, b)];
  const side = r[0] * s[0] + r[1] * s[1] + r[2] * s[2] + r[3] * s[3] < 0 ? -1 : 1;
  const quat = [0, 1, 2, 3].map((k) => (1 - part) * r[k] + side * part * s[k]), length = Math.hypot(...quat) || 1;
  return { pos: [0, 1, 2].map((k) => (1 - part) * p[k] + part * q[k]), quat: quat.map((value) => value / length) };
}

function draw() {
  const count = episode.positions.shape[1], places = [], poses = [];
  for (let k = 0; k < count; k++) {
    places.push(poseAt(episode.positions, episode.quats, count, k));
    poses.push(rigid(places[k].pos, places[k].quat));
  }
  const frame = Math.min(Math.floor(state.time / episode.frame_dt + 1e-6), episode.positions.shape[0] - 1);
  const marks = episode.marks.map((m) => {
    const row = m.values.subarray(7 * frame, 7 * frame + 7);
    return rigid(row.slice(0, 3), row.slice(3, 7));
  });
  const follows = data.scene.follows, middle = follows >= 0 && find("follow").checked ? places[follows].pos : data.scene.center;
  const target = [0, 1, 2].map((k) => middle[k] + camera.pan[k]), flat = camera.distance * Math.cos(camera.elevation);
  const eye = [
    target[0] + flat * Math.cos(camera.azimuth),
    target[1] + flat * Math.sin(camera.azimuth),
    target[2] + camera.distance * Math.sin(camera.elevation),
  ];
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  renderer.draw(poses, marks, 0.15 * data.scene.size_m, { eye, target });
  find("time").value = state.time;
  find("clock").textContent = `${state.time.toFixed(1)} / ${episode.length.toFixed(1)} s`;
  for (const curve of episode.curves) curve.cursor.style.left = `${(100 * state.time) / (episode.length || 1)}%`;
}

function makePlots() {
  const panel = find("curves");
  panel.replaceChildren();
  for (const curve of episode.curves) {
    const box = document.createElement("figure"), title = document.createElement("figcaption"), plot = document.createElement("canvas");
    title.textContent = curve.title;
    const names = document.createElement("p"), frame = document.createElement("div");
    curve.names.forEach((name, k) => {
      const label = document.createElement("span");
      label.textContent = name;
      label.style.color = COLORS[k % COLORS.length];
      names.append(label);
    });
    curve.plot = plot;
    curve.cursor = document.createElement("i");
    frame.append(plot, curve.cursor);
    box.append(title, frame, names);
    panel.append(box);
    plot.addEventListener("pointerdown", (event) => seek((event.offsetX / plot.clientWidth) * episode.length));
  }
  drawPlots();
}

function drawPlots() {
  for (const curve of episode.curves) {
    const plot = curve.plot, pen = plot.getContext("2d"), [rows, columns] = curve.shape;
    const ratio = window.devicePixelRatio || 1, width = plot.clientWidth, height = plot.clientHeight;
    plot.width = width * ratio;
    plot.height = height * ratio;
    pen.scale(ratio, ratio);
    let low = 0, high = 0;
    for (const value of curve.values) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const room = (high - low || 1) * 0.08, x = (row) => (row / Math.max(rows - 1, 1)) * width;
    const y = (value) => height - ((value - low + room) / (high - low + 2 * room || 1)) * height;
    pen.strokeStyle = "#c9d0d8";
    line(pen, [[0, y(0)], [width, y(0)]]);
    pen.lineWidth = 1.4;
    for (let c = 0; c < columns; c++) {
      pen.strokeStyle = COLORS[c % COLORS.length];
      line(pen, Array.from({ length: rows }, (_, row) => [x(row), y(curve.values[row * columns + c])]));
    }
    pen.fillStyle = "#5c6670";
    pen.font = "10px system-ui, sans-serif";
    pen.fillText(high.toPrecision(3), 2, 10);
    pen.fillText(low.toPrecision(3), 2, height - 3);
  }
}

function line(pen, points) {
  pen.beginPath();
  points.forEach(([x, y], k) => (k ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
}

function seek(time) {
  state.time = Math.min(Math.max(time, 0), episode.length);
  state.dirty = true;
}

function setPlaying(playing) {
  state.playing = playing;
  find("play").textContent = playing ? "Pause" : "Play";
}

let before = null;
function tick(now) {
  const elapsed = before === null ? 0 : Math.min((now - before) / 1000, 0.1);
  before = now;
  if (state.playing && episode.length > 0) {
    state.time += elapsed * state.speed;
    if (state.time > episode.length) state.time = 0;
    state.dirty = true;
  }
  if (state.dirty) {
    state.dirty = false;
    draw();
  }
  requestAnimationFrame(tick);
}

// One finger or the left button turns the camera; two fingers, or the right button, move it; the wheel and a pinch zoom.
function listen() {
  const fingers = new Map();
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
  };
  const zoom = (factor) => (camera.distance = Math.min(Math.max(camera.distance * factor, 0.2 * data.scene.size_m), 30 * data.scene.size_m));
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    const dx = event.clientX - last[0], dy = event.clientY - last[1], apart = fingers.size > 1 ? spread() : 1;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (fingers.size > 1) zoom(apart / spread());
    if (fingers.size > 1 || event.buttons & 2 || event.shiftKey) {
      const step = camera.distance / canvas.clientHeight / fingers.size, c = Math.cos(camera.azimuth), s = Math.sin(camera.azimuth);
      camera.pan = [camera.pan[0] + dx * step * s, camera.pan[1] - dx * step * c, camera.pan[2] + dy * step];
    } else {
      camera.azimuth -= dx * 0.008;
      camera.elevation = Math.min(Math.max(camera.elevation + dy * 0.008, -1.5), 1.5);
    }
    state.dirty = true;
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(0.001 * event.deltaY));
    state.dirty = true;
  }, { passive: false });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  find("play").addEventListener("click", () => setPlaying(!state.playing));
  find("time").addEventListener("input", () => seek(Number(find("time").value)));
  find("speed").addEventListener("change", () => (state.speed = Number(find("speed").value)));
  find("episode").addEventListener("change", () => openEpisode(Number(find("episode").value)));
  find("follow").addEventListener("change", () => (state.dirty = true));
  window.addEventListener("resize", () => {
    drawPlots();
    state.dirty = true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.target !== document.body) return;
    if (event.key === " ") setPlaying(!state.playing);
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      setPlaying(false);
      seek(state.time + (event.key === "ArrowLeft" ? -1 : 1) * episode.frame_dt);
    }
  });
}

function main() {
  document.title = data.title;
  find("title").textContent = data.title;
  find("about").textContent = data.about;
  data.episodes.forEach((_, k) => find("episode").append(new Option(`Episode ${k + 1} of ${data.episodes.length}`, k)));
  find("follow").parentElement.hidden = data.scene.follows < 0;
  renderer = new Renderer(canvas, data.scene);
  listen();
  openEpisode(0);
  requestAnimationFrame(tick);
}

try {
  main();
} catch (error) {
  find("about").textContent = `This page cannot be shown: ${error.message}`;
}
