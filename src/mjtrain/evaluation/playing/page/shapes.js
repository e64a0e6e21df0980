"use strict";
// Triangles of geoms: flat arrays of corners, each with a position and a normal in the frame of the geom.

class Triangles {
  constructor() {
    this.positions = [];
    this.normals = [];
  }

  corner(p, n) {
    this.positions.push(p[0], p[1], p[2]);
    this.normals.push(n[0], n[1], n[2]);
  }

  quad(p, n) {
    for (const k of [0, 1, 2, 0, 2, 3]) this.corner(p[k], n[k]);
  }
}

const SEGMENTS = 24;

// Revolves a profile around z. Points are [radius, z, radial part of the normal, z part of the normal], upwards.
function revolve(profile) {
  const out = new Triangles();
  for (let k = 0; k + 1 < profile.length; k++) {
    for (let s = 0; s < SEGMENTS; s++) {
      const p = [], n = [];
      for (const [row, turn] of [[k, s], [k, s + 1], [k + 1, s + 1], [k + 1, s]]) {
        const [r, z, nr, nz] = profile[row];
        const c = Math.cos((2 * Math.PI * turn) / SEGMENTS), i = Math.sin((2 * Math.PI * turn) / SEGMENTS);
        p.push([r * c, r * i, z]);
        n.push([nr * c, nr * i, nz]);
      }
      out.quad(p, n);
    }
  }
  return out;
}

function capsule(radius, half) {
  const profile = [], rows = 8;
  for (let k = -rows; k <= rows; k++) {
    const a = (k / rows) * (Math.PI / 2), c = Math.cos(a), s = Math.sin(a);
    if (k === 0 && half > 0) profile.push([radius, -half, 1, 0]);
    profile.push([radius * c, radius * s + (k < 0 ? -half : half), c, s]);
  }
  return revolve(profile);
}

function cylinder(r, h) {
  return revolve([[0, -h, 0, -1], [r, -h, 0, -1], [r, -h, 1, 0], [r, h, 1, 0], [r, h, 0, 1], [0, h, 0, 1]]);
}

function ellipsoid(size) {
  const out = capsule(1, 0);
  for (let k = 0; k < out.positions.length; k += 3) {
    const n = [0, 1, 2].map((axis) => out.normals[k + axis] / size[axis]), length = Math.hypot(...n);
    for (let axis = 0; axis < 3; axis++) {
      out.positions[k + axis] *= size[axis];
      out.normals[k + axis] = n[axis] / length;
    }
  }
  return out;
}

function box(size) {
  const out = new Triangles();
  for (let axis = 0; axis < 3; axis++) {
    for (const side of [-1, 1]) {
      const normal = [0, 0, 0], points = [];
      normal[axis] = side;
      for (const [u, v] of [[-1, -1], [1, -1], [1, 1], [-1, 1]]) {
        const p = [0, 0, 0];
        p[axis] = side * size[axis];
        p[(axis + 1) % 3] = u * size[(axis + 1) % 3];
        p[(axis + 2) % 3] = v * size[(axis + 2) % 3];
        points.push(p);
      }
      out.quad(points, [normal, normal, normal, normal]);
    }
  }
  return out;
}

function plane(size, far) {
  const out = new Triangles(), x = size[0] || far, y = size[1] || far, up = [0, 0, 1];
  out.quad([[-x, -y, 0], [x, -y, 0], [x, y, 0], [-x, y, 0]], [up, up, up, up]);
  return out;
}

// A mesh: smooth where its faces meet at less than 45 degrees, and flat elsewhere.
function mesh(vertices, faces) {
  const count = vertices.length / 3, smooth = new Float32Array(3 * count), flat = [];
  const at = (k) => [vertices[3 * k], vertices[3 * k + 1], vertices[3 * k + 2]];
  for (let f = 0; f < faces.length; f += 3) {
    const [a, b, c] = [at(faces[f]), at(faces[f + 1]), at(faces[f + 2])];
    const n = cross(subtract(b, a), subtract(c, a));
    flat.push(normalized(n));
    for (let k = 0; k < 3; k++) for (let axis = 0; axis < 3; axis++) smooth[3 * faces[f + k] + axis] += n[axis];
  }
  const out = new Triangles();
  for (let f = 0; f < faces.length; f++) {
    const k = faces[f], n = flat[Math.floor(f / 3)];
    const mean = normalized([smooth[3 * k], smooth[3 * k + 1], smooth[3 * k + 2]]);
    out.corner(at(k), dot(mean, n) > 0.7 ? mean : n);
  }
  return out;
}

function heightField(grid, size) {
  const [rows, columns] = grid.shape, vertices = [], faces = [];
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      vertices.push(size[0] * ((2 * c) / (columns - 1) - 1), size[1] * ((2 * r) / (rows - 1) - 1), grid.values[r * columns + c]);
    }
  }
  for (let r = 0; r + 1 < rows; r++) {
    for (let c = 0; c + 1 < columns; c++) {
      const k = r * columns + c;
      faces.push(k, k + 1, k + columns + 1, k, k + columns + 1, k + columns);
    }
  }
  return mesh(vertices, faces);
}

function shape(geom, meshes, far) {
  const size = geom.size;
  switch (geom.shape) {
    case "plane": return plane(size, far);
    case "hfield": return heightField(unpack(geom.grid), geom.extent);
    case "sphere": return capsule(size[0], 0);
    case "capsule": return capsule(size[0], size[1]);
    case "cylinder": return cylinder(size[0], size[1]);
    case "ellipsoid": return ellipsoid(size);
    case "box": return box(size);
    default: return mesh(meshes[geom.mesh].vertices, meshes[geom.mesh].faces);
  }
}

// An array that Python packed: integers in base64, and what they count.
function unpack(packed) {
  const text = atob(packed.data), bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const kinds = { int16: Int16Array, uint32: Uint32Array };
  const numbers = new kinds[packed.type](bytes.buffer);
  const values = packed.type === "uint32" ? numbers : Float32Array.from(numbers, (n) => packed.offset + packed.scale * n);
  return { shape: packed.shape, values };
}

const subtract = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const normalized = (a) => {
  const length = Math.hypot(a[0], a[1], a[2]) || 1;
  return [a[0] / length, a[1] / length, a[2] / length];
};
