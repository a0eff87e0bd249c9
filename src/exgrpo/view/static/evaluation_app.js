// The page of an evaluation: its views.
import { answeredPage, answeredQuestions, resultsPage } from "./answers.js";
import { start } from "./app.js";

start({ run: resultsPage, questions: answeredQuestions, q: answeredPage, help: "evaluation-help" },
	[["run", "Results", "r"], ["questions", "Questions", "q", "q"]]);
