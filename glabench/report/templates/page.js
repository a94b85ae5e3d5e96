"use strict";
// Without script the page is complete: the matrix, figures, titles on points, tables. Script adds baselines to choose from,
// hover text that follows a finger, legends that hide a system, sorting, filters and saving a figure.

// --- values on hover: the nearest point of a panel, by mouse or finger; by keyboard one point after the other
const tip = document.getElementById("tip");
let lit = null;
for (const title of document.querySelectorAll(".hit > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
function nearest(svg, event) {
  let best = null, reach = 26;
  for (const hit of svg.querySelectorAll(".hit:not(.off)")) {
    const box = hit.getBoundingClientRect();
    const away = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
    if (away < reach) { best = hit; reach = away; }
  }
  return best;
}
function show(hit) {
  if (lit) lit.classList.remove("on");
  lit = hit;
  tip.hidden = !hit;
  if (!hit) return;
  hit.classList.add("on");
  tip.textContent = hit.dataset.tip;
  const box = hit.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  const left = Math.min(Math.max(8, box.x + box.width / 2 - tip.offsetWidth / 2), wide - tip.offsetWidth - 8);
  const above = box.y - tip.offsetHeight - 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 48 ? above : box.bottom + 8) + scrollY}px`;
}
for (const svg of document.querySelectorAll(".panel svg")) {
  svg.addEventListener("pointermove", (event) => show(nearest(svg, event)));
  svg.addEventListener("pointerdown", (event) => show(nearest(svg, event)));
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(null); });
}
// Right and left go along a series, down and up to the next series or the one before. The places of one bar are one stop.
function steps(svg) {
  const hits = [...svg.querySelectorAll(".hit:not(.off)")];
  return hits.filter((hit, i) => i === 0 || hit.dataset.s !== hits[i - 1].dataset.s || hit.dataset.tip !== hits[i - 1].dataset.tip);
}
function step(hits, key) {
  const at = hits.indexOf(lit), starts = hits.filter((hit, i) => i === 0 || hit.dataset.s !== hits[i - 1].dataset.s);
  if (at < 0 || key === "Home") return hits[0];
  if (key === "End") return hits[hits.length - 1];
  if (key === "ArrowRight") return hits[Math.min(at + 1, hits.length - 1)];
  if (key === "ArrowLeft") return hits[Math.max(at - 1, 0)];
  const series = starts.findLastIndex((hit) => hits.indexOf(hit) <= at);
  return starts[Math.min(Math.max(series + (key === "ArrowDown" ? 1 : -1), 0), starts.length - 1)];
}
const typed = (svg) => Boolean(svg?.matches(":focus-visible"));
for (const svg of document.querySelectorAll(".panel svg")) {
  if (!svg.querySelector(".hit")) continue;
  svg.tabIndex = 0;
  svg.setAttribute("role", "application"); // so that screen readers leave the arrow keys to it
  svg.setAttribute("aria-description", "Arrow keys go from point to point.");
  svg.addEventListener("focus", () => { if (typed(svg)) show(steps(svg)[0] || null); });
  svg.addEventListener("blur", () => show(null));
  svg.addEventListener("keydown", (event) => {
    if (!["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
    const hits = steps(svg);
    if (!hits.length || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const hit = step(hits, event.key);
    hit.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(hit);
  });
}
addEventListener("keydown", (event) => { if (event.key === "Escape") show(null); });
// What the keyboard shows stays: a panel that gets the focus may scroll into sight.
addEventListener("scroll", () => { if (!lit || !typed(lit.ownerSVGElement)) show(null); }, { passive: true });

// --- the matrix and the chart: which baseline, and the time of what
for (const cell of document.querySelectorAll(".matrix td[title]")) {
  cell.dataset.tip = cell.title;
  cell.removeAttribute("title");
  for (const kind of ["pointerenter", "pointerdown"]) cell.addEventListener(kind, () => show(cell));
  cell.addEventListener("pointerleave", () => show(null));
}
function compareWith(table, place, title) {
  for (const cell of table.querySelectorAll("td[data-by]")) {
    const [ratio, said, word, heat, span] = cell.dataset.by.split("|")[place].split(";");
    cell.className = said;
    cell.style.setProperty("--heat", heat);
    cell.querySelector("b").textContent = ratio;
    cell.querySelector("em").textContent = word;
    const facts = cell.dataset.facts ??= cell.dataset.tip;
    cell.dataset.tip = span ? `${facts}\n${ratio} the speed of ${title} (${span})` : facts;
  }
}
function view(table, index) {
  for (const body of table.tBodies) {
    body.hidden = body.dataset.view !== index;
    body.rows[0].hidden = true; // the selector says what its title does
  }
  const rows = [...table.tHead.rows, ...[...table.tBodies].flatMap((body) => [...body.rows].slice(1))];
  const inside = rows.filter((row) => row.parentNode.dataset.view === index);
  for (let i = 1; i < table.tHead.rows[0].cells.length; i++) { // a system that ran in no case of this view has no column
    const empty = inside.every((row) => !row.cells[i].textContent.trim());
    for (const row of rows) row.cells[i].hidden = empty;
  }
}
function choose(select) {
  const form = select.closest("form"), chart = form.closest(".chart"), table = document.getElementById(form.dataset.of);
  const option = select.selectedOptions[0];
  if (select.dataset.pick === "view") view(table, select.value);
  else if (table) compareWith(table, select.selectedIndex, option.textContent);
  else for (const part of chart.querySelectorAll("[data-choice]")) part.hidden = part.dataset.choice !== select.value;
}
const picks = [...document.querySelectorAll(".pick select")];
for (const select of picks) {
  select.form.hidden = false;
  choose(select);
  select.addEventListener("change", () => {
    for (const other of picks) { // a baseline is chosen for the matrix and for the chart
      if (other.dataset.pick !== select.dataset.pick || (select.dataset.pick === "view" && other !== select)) continue;
      if (![...other.options].some((option) => option.value === select.value)) continue;
      other.value = select.value;
      choose(other);
    }
  });
}

// --- legends
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const off = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!off));
    for (const part of button.closest("figure").querySelectorAll(".panels [data-s]"))
      if (part.dataset.s === button.dataset.s) part.classList.toggle("off", off);
  });
}

// --- sorting: first click ascending, second descending; cells without a value stay at the end
function value(row, column) {
  const cell = row.cells[column];
  return cell.dataset.v ? Number(cell.dataset.v) : null;
}
function compare(a, b, column, numeric, sign) {
  if (!numeric) return sign * a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
  const x = value(a, column), y = value(b, column);
  if (x === null || y === null) return (x === null) - (y === null);
  return sign * (x - y);
}
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(a, b, column, head.classList.contains("n"), down ? -1 : 1));
    table.tBodies[0].append(...rows);
  }));
}

// --- filters, on pages that have them
const cases = document.getElementById("cases"), form = document.querySelector(".filters");
function filters() {
  const names = [...cases.tHead.rows[0].cells].map((cell) => cell.textContent);
  const all = [...cases.tBodies[0].rows];
  for (const select of form.querySelectorAll("select")) {
    const column = names.indexOf(select.dataset.column);
    select.append(new Option("all", ""));
    for (const word of new Set(all.map((row) => row.cells[column].textContent))) select.append(new Option(word, word));
  }
  function filter() {
    const words = document.getElementById("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = [...form.querySelectorAll("select")].map((s) => [names.indexOf(s.dataset.column), s.value]);
    const time = names.indexOf("time, ms"), timed = document.getElementById("timed")?.checked;
    let shown = 0;
    for (const row of all) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      const fits = words.every((word) => text.includes(word)) && (!timed || value(row, time) !== null)
        && wanted.every(([column, word]) => !word || row.cells[column].textContent === word);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown").textContent = (shown === all.length ? "" : `${shown} of `) + `${all.length} ${form.dataset.noun}`;
  }
  form.hidden = false;
  for (const kind of ["input", "change"]) form.addEventListener(kind, filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
if (form) filters();

// --- saving a figure: title, panels as they are shown, legend; colours as they are on this page
function whole(figure) {
  const panels = [...figure.querySelectorAll(".panel svg")], columns = Math.min(3, panels.length), gap = 14;
  const style = getComputedStyle(figure), ink = style.color, parts = [], rows = Math.ceil(panels.length / columns);
  const size = panels[0].viewBox.baseVal.width;
  let y = 34;
  for (let r = 0; r < rows; r++) {
    const line = panels.slice(r * columns, (r + 1) * columns);
    line.forEach((svg, c) => {
      const copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
      for (const gone of copy.querySelectorAll(".hit, .off")) gone.remove();
      parts.push(`<svg x="${gap + c * (size + gap)}" y="${y}" width="${box.width}" height="${box.height}" viewBox="0 0 ${box.width} ${box.height}">${copy.innerHTML}</svg>`);
    });
    y += Math.max(...line.map((svg) => svg.viewBox.baseVal.height)) + gap;
  }
  const width = columns * (size + gap) + gap;
  let x = gap;
  for (const button of figure.querySelectorAll('.legend button[aria-pressed="true"]')) {
    const name = button.textContent, room = 46 + name.length * 6;
    if (x + room > width) { x = gap; y += 18; }
    const label = document.createElement("span");
    label.textContent = name;
    parts.push(`<svg x="${x}" y="${y - 9}" width="30" height="12" viewBox="0 0 30 12" fill="none">${button.querySelector("svg").innerHTML}</svg>`
      + `<text x="${x + 35}" y="${y}" font-size="9.5" fill="${ink}">${label.innerHTML}</text>`);
    x += room;
  }
  const title = figure.querySelector("h3").innerHTML, sans = getComputedStyle(document.body).fontFamily.replaceAll('"', "'");
  const text = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${y + 14}" width="${width}" height="${y + 14}" font-family="${sans}">`
    + `<style>${document.getElementById("looks")?.textContent || ""}</style><rect width="100%" height="100%" fill="${style.backgroundColor}"/><text x="${gap}" y="22" font-size="12.5" font-weight="700" fill="${ink}">${title}</text>${parts.join("")}</svg>`;
  const known = getComputedStyle(document.documentElement);
  return { width, height: y + 14, text: text.replace(/var\((--[\w-]+)\)/g, (_, name) => known.getPropertyValue(name).trim().replaceAll('"', "'")) };
}
function picture(svg) {
  return new Promise((resolve, reject) => {
    const image = new Image(), scale = 3;
    image.onload = () => {
      const canvas = Object.assign(document.createElement("canvas"), { width: svg.width * scale, height: svg.height * scale });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(resolve, "image/png");
    };
    image.onerror = reject;
    image.src = URL.createObjectURL(new Blob([svg.text], { type: "image/svg+xml" }));
  });
}
for (const bar of document.querySelectorAll(".save")) {
  bar.hidden = false;
  bar.addEventListener("click", async (event) => {
    const kind = event.target.dataset.save;
    if (!kind) return;
    const figure = bar.closest("figure"), svg = whole(figure);
    const blob = kind === "png" ? await picture(svg) : new Blob([svg.text], { type: "image/svg+xml" });
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${figure.dataset.name}.${kind}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

// --- where we are
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.getAttribute("href").slice(1), a]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting || !links.has(entry.target.id)) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entry.target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const section of document.querySelectorAll("main > section")) watch.observe(section);

// --- print: what is folded is opened
addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
