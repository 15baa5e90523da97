"use strict";
(() => {
  const all = [...document.querySelectorAll(".finding")];
  const form = document.getElementById("filters");
  const names = ["kind", "op", "mode", "feature", "dtype", "text"];
  const control = (name) => document.getElementById(`filter-${name}`);

  const wanted = () => Object.fromEntries(names.map((name) => [name, control(name).value.trim()]));

  function matches(finding, want) {
    const places = JSON.parse(finding.dataset.places);
    const asked = [want.op, want.mode, want.dtype];
    return (!want.kind || finding.dataset.kind === want.kind)
      && places.some((place) => asked.every((value, i) => !value || place[i] === value))
      && (!want.feature || JSON.parse(finding.dataset.features).includes(want.feature))
      && finding.textContent.toLowerCase().includes(want.text.toLowerCase());
  }

  function show() {
    const want = wanted();
    for (const finding of all) finding.hidden = !matches(finding, want);
    const shown = all.filter((finding) => !finding.hidden).length;
    document.getElementById("shown").textContent = `${shown} of ${all.length} findings shown.`;
  }

  function reset() {
    for (const name of names) control(name).value = "";
  }

  function showCell(cell) {
    reset();
    for (const name of ["op", "mode", "feature"]) control(name).value = cell[name];
    show();
  }

  function goTo(heading) {
    heading.scrollIntoView();
    heading.focus({ preventScroll: true });
  }

  const unfold = (open) => { for (const finding of all) finding.querySelector("details").open = open; };

  function openTarget() {
    const finding = all.find((each) => `#${each.id}` === location.hash);
    if (!finding) return;
    if (finding.hidden) { reset(); show(); }
    finding.querySelector("details").open = true;
    finding.scrollIntoView();
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  if (!form) return;

  form.hidden = false;
  form.addEventListener("input", () => show());
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("reset").addEventListener("click", () => { reset(); show(); });
  document.getElementById("open-all").addEventListener("click", () => unfold(true));
  document.getElementById("close-all").addEventListener("click", () => unfold(false));
  for (const cell of document.querySelectorAll(".grid a")) {
    cell.addEventListener("click", (event) => {
      event.preventDefault();
      showCell(cell.dataset);
      goTo(document.getElementById("findings"));
    });
  }
  addEventListener("hashchange", openTarget);
  openTarget();
})();
