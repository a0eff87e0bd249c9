// The page of a run: its views.
import { runPage } from "./run.js";
import { questionsPage } from "./questions.js";
import { questionPage } from "./question.js";
import { stepPage, stepsPage } from "./steps.js";
import { start } from "./app.js";

start({ run: runPage, questions: questionsPage, q: questionPage, steps: stepsPage, step: stepPage, help: "help" },
	[["run", "Run", "r"], ["questions", "Questions", "q", "q"], ["steps", "Steps", "s", "step"]]);
