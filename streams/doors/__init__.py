"""What people and programs do with an application from outside its workers, over any log: submit, answer, wait, look."""
